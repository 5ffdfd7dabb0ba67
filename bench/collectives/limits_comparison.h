// All-reduce of two ranks beside bare sockets, or a bare provider of libfabric, that move the same bytes between the same two processes.
//
// Two ranks' all-reduce moves the whole vector each way: at once when they swap vectors, in two halves around a ring. So its limit is a
// bare exchange of as many bytes both ways at once; and for a few bytes, where nothing overlaps, nothing is faster than a message one
// way. Each round measures all of them, in turns that begin with another one each time, so that what the machine does meanwhile meets all
// alike; a ratio is of one round, and their median counts.

#ifndef BENCH_COLLECTIVES_LIMITS_COMPARISON_H_
#define BENCH_COLLECTIVES_LIMITS_COMPARISON_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/collectives/case.h"
#include "bench/limits/connect.h"
#include "bench/measure.h"
#include "bench/ranks.h"
#include "bench/report.h"

namespace lockstep {
namespace bench {

struct LimitsOptions {
  std::vector<int64_t> sizes;
  int rounds = 15;
  std::chrono::milliseconds round_time{10};  // for each of the things compared
  LinkOptions link;
};

// The sizes that are asked about: latency, the middle, gradient buckets.
std::vector<int64_t> DefaultLimitSizes();

// Collective, of two ranks: FAILED_PRECONDITION for another number of ranks. Needs two vectors of the largest size. Rank 0 prints each
// row to `tables` as it is done; returns all of them:
//   {"size_bytes": 8, "lockstep_us": 9.1, "both_ways_us": 5.0, "both_ways_ratio": {"low": 1.7, "median": 1.8, "high": 1.9},
//    "one_way_us": 4.1, "one_way_ratio": {...}}    null for large sizes
// Below a ratio of 1 Lockstep is faster.
absl::StatusOr<Json> CompareWithLimits(const ProcessGroup& group, const LimitsOptions& options, FILE* tables,
                                       Memory* memory);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COLLECTIVES_LIMITS_COMPARISON_H_
