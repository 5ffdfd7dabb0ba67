// The program: replays a model's steps on all ranks and prints how well communication hides behind computation.

#ifndef BENCH_OVERLAP_PROGRAM_H_
#define BENCH_OVERLAP_PROGRAM_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
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
  std::string transport;  // as LOCKSTEP_TRANSPORT; empty: as that says
  std::string link;       // see BecomeEmulatedHosts; empty: all ranks on this host
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

// Returns the program's exit status: 0; 1 for failures and wrong averages; 2 for what CheckOptions says; 77 where hosts
// cannot be emulated.
int RunOverlap(const OverlapOptions& options, char** argv);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_PROGRAM_H_
