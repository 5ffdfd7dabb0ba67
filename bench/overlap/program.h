// The program: replays a model's steps on all ranks and prints how well communication hides behind computation.

#ifndef BENCH_OVERLAP_PROGRAM_H_
#define BENCH_OVERLAP_PROGRAM_H_

#include "bench/overlap/options.h"

namespace lockstep {
namespace bench {

// Returns the program's exit status: 0; 1 for failures and wrong averages; 2 for what CheckOptions says; 77 where hosts
// cannot be emulated.
int RunOverlap(const OverlapOptions& options, char** argv);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_PROGRAM_H_
