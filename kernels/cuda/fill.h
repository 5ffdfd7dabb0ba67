// Setting every element of an array on a GPU. Streams, threads and errors as in cast.h.

#ifndef KERNELS_CUDA_FILL_H_
#define KERNELS_CUDA_FILL_H_

#include <cstddef>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// target[i] = value, rounded to a float dtype as CastScaled would from f64; of complex numbers the real part, the
// imaginary one is 0. INVALID_ARGUMENT for a value that an integer or bool (0 or 1) does not have, and for an array
// that is not aligned to its elements, also of complex numbers.
absl::Status Fill(DType dtype, void* target, size_t count, double value, Stream& stream);

namespace internal {

absl::Status Fill(DType dtype, void* target, size_t count, double value, Executor& executor);

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_FILL_H_
