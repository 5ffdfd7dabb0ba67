// All-reduce of two ranks beside bare sockets, or a bare provider of libfabric, that move the same bytes between the same
// two processes.
//
// Two ranks' all-reduce moves the whole vector each way: at once when they swap vectors, in two halves around a ring.
// So its limit is a bare exchange of as many bytes both ways at once; and for a few bytes, where nothing overlaps,
// nothing is faster than a message one way. Each round measures all of them, in turns that begin with another one each
// time, so that what the machine does meanwhile meets all alike; a ratio is of one round, and their median counts.

#ifndef BENCH_LIMITS_COMPARISON_H_
#define BENCH_LIMITS_COMPARISON_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "bench/memory.h"
#include "bench/report.h"
#include "bench/team.h"

namespace lockstep {
namespace bench {

struct LimitsOptions {
  std::vector<int64_t> sizes;
  int rounds = 15;
  std::chrono::milliseconds round_time{10};  // for each of the things compared
  std::string congestion_control;            // of the bare sockets; empty: the system's default
  std::string host = "127.0.0.1";            // rank 0's IPv4 address, where they meet
  // A provider of libfabric in place of bare sockets: LOCKSTEP_OFI_PROVIDER, or the one that is preferred at `host`,
  // which is then this rank's own address.
  bool fabric = false;
  // With that, on all ranks alike, and where these are on one host: libfabric's own program, too, which is installed.
  bool pingpong = false;
};

// The sizes that are asked about: latency, the middle, gradient buckets.
std::vector<int64_t> DefaultLimitSizes();

// Collective, of two ranks: FAILED_PRECONDITION for another number of ranks. Needs two vectors of the
// largest size. Gives `on_row` each row as it is done, on every rank.
absl::Status CompareWithLimits(const Team& team, const LimitsOptions& options, Memory* memory,
                               absl::FunctionRef<void(const LimitRow&)> on_row);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_COMPARISON_H_
