// The processes of a benchmark: it starts its own, unless a launcher has.

#ifndef BENCH_RANKS_H_
#define BENCH_RANKS_H_

#include "absl/status/status.h"

namespace lockstep {
namespace bench {

// Whether a launcher started this process as a rank.
bool IsRank();

// Runs this program again, with the same arguments, as so many ranks, of which rank 0 keeps the terminal; returns the
// exit status for this process. Complains on stderr about a rank that fails.
int RunAsRanks(int ranks, char** argv);

// Keeps the calling thread on a core of its own among those that it may use, the `rank`-th. Call it once the world is
// made: what the ranks may use together decides whether they poll. Threads made before keep what they had.
// FAILED_PRECONDITION when there are fewer cores than local ranks; the thread stays as it was.
absl::Status PinToCore(int rank, int local_ranks);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_RANKS_H_
