// What bench:overlap is told on its command line.

#ifndef BENCH_OVERLAP_OPTIONS_H_
#define BENCH_OVERLAP_OPTIONS_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "bench/overlap/computation.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace bench {

struct OverlapOptions {
  int ranks = 2;
  std::string model = "resnet50";
  ComputeKind compute = ComputeKind::kBusy;
  // Of a step, forward and backward. 0: backward is to take as long as communication alone, which is where the most can
  // be hidden and the least goes unnoticed.
  double compute_ms = 0;
  // When compute is away: the thread that marks gradients sleeps until the last of each bucket is there, not for every one.
  bool wake_per_bucket = false;
  // Where gradients are. On a GPU a stream computes them, and `backend` brings them to the other ranks (comm/device_backend.h).
  DeviceKind device = DeviceKind::kHost;
  std::string backend = "auto";
  std::string transport;  // as LOCKSTEP_TRANSPORT; empty: as that says
  std::string link;       // see BecomeEmulatedHosts; empty: all ranks on this host
  bool throttle = false;  // messages are held back as by such links, but the ranks are on this host
  // Not planned anew: gradients come in the order that the first plan expects.
  ReducerOptions reducer;
  int rounds = 15;
  int steps = 0;  // of each kind in a round; 0: as many as fit in round_time, one at least
  std::chrono::milliseconds round_time{100};
  int overhead_steps = 300;
  bool pin = true;
  std::string json;  // a file; empty: none
};

// INVALID_ARGUMENT for options that are out of range or do not go together.
absl::Status CheckOptions(const OverlapOptions& options);

// 0 for "none". INVALID_ARGUMENT for what is no rate.
absl::StatusOr<double> LinkBytesPerSecond(const std::string& link);

// "host", "cuda". INVALID_ARGUMENT for anything else.
absl::StatusOr<DeviceKind> ParseDeviceKind(absl::string_view text);

// "before", "after", "in_collective": when gradients are divided. INVALID_ARGUMENT for anything else: a sum is no
// average, and a factor of the embedder's changes no time.
absl::StatusOr<Average> ParseAverage(absl::string_view text);
std::string Name(Average average);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_OPTIONS_H_
