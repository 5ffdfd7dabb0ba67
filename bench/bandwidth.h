// Bandwidths as nccl-tests defines them (its doc/PERFORMANCE.md), so that tables can be laid side by side.
//
// The algorithm's bandwidth is size / time. The bus bandwidth multiplies it by what an optimal algorithm moves through
// each rank's link per byte, which makes it comparable with the hardware's rate whatever the number of ranks. Sizes are
// of the whole vector: for all-gather what it makes, for reduce-scatter what it starts from.

#ifndef BENCH_BANDWIDTH_H_
#define BENCH_BANDWIDTH_H_

#include <cstdint>

#include "bench/exercise.h"

namespace lockstep {
namespace bench {

// GB/s, with GB = 10^9 bytes; 0 for no time.
double AlgorithmBandwidth(int64_t bytes, double seconds);

// The algorithm's bandwidth times this is the bus bandwidth. Of unequal blocks as of equal ones.
double BusFactor(const Exercise& exercise, int ranks);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_BANDWIDTH_H_
