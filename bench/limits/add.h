// Sums of float32 vectors as fast as the processor does them: the arithmetic of the shared-memory prototypes, apart
// from Lockstep's kernels on purpose.

#ifndef BENCH_LIMITS_ADD_H_
#define BENCH_LIMITS_ADD_H_

#include <cstddef>

namespace lockstep {
namespace bench {

// a[i] = b[i] = a[i] + b[i], in one pass. The vectors must not overlap.
void AddToBoth(float* a, float* b, size_t count);

// a[i] += b[i]. The vectors must not overlap.
void AddTo(float* a, const float* b, size_t count);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_ADD_H_
