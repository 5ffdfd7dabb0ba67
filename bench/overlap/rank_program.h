// One rank's part in bench:overlap: replays a model's steps and prints how well communication hides behind computation.

#ifndef BENCH_OVERLAP_RANK_PROGRAM_H_
#define BENCH_OVERLAP_RANK_PROGRAM_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace bench {

struct OverlapOptions {
  int ranks = 2;
  ModelTable model;
  ComputeKind compute = ComputeKind::kBusy;
  // Of a step, forward and backward. 0: backward is to take as long as communication alone, which is where the most can
  // be hidden and the least goes unnoticed.
  double compute_ms = 0;
  // When compute is away: the thread that marks gradients sleeps until the last of each bucket is there, not for every one.
  bool wake_per_bucket = false;
  // Where gradients are. On a GPU a stream computes them, and `backend` brings them to the other ranks (comm/world/device_backend.h).
  DeviceKind device = DeviceKind::kHost;
  std::string backend = "auto";
  std::string transport;  // as LOCKSTEP_TRANSPORT; empty: as that says
  std::string link;       // between emulated hosts, as tc writes it, or "none"; empty: all ranks on this host
  bool throttle = false;  // messages are held back as by such links, but the ranks are on this host
  double link_bytes_per_second = 0;  // then; 0 for "none"
  std::string average;               // when gradients are divided, for people
  // Not planned anew: gradients come in the order that the first plan expects.
  ReducerOptions reducer;
  int rounds = 15;
  int steps = 0;  // of each kind in a round; 0: as many as fit in round_time, one at least
  std::chrono::milliseconds round_time{100};
  int overhead_steps = 300;
  bool pin = true;
  std::string json;  // a file; empty: none
};

// DATA_LOSS for wrong averages. Ranks take the host's GPUs in turn; those that share one get an NCCL_HOSTID of their own, without which
// NCCL refuses them.
absl::Status RunOverlapRank(const OverlapOptions& options);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_RANK_PROGRAM_H_
