// Multiplying an array by a factor, and dividing integers, on a GPU: the bits of kernels/cpu/scale.h. Streams, threads
// and errors as in cast.h.

#ifndef KERNELS_CUDA_SCALE_H_
#define KERNELS_CUDA_SCALE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/dtype.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// target[i] = source[i] * factor. `target` may equal `source` exactly. INVALID_ARGUMENT where it overlaps it in another way,
// for integers and bool, and for arrays that are not aligned to their elements (parts of complex ones).
absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor, Stream& stream);

// data[i] = data[i] / divisor, rounded toward zero: how an integer average ends. INVALID_ARGUMENT when the dtype is no
// integer, the divisor is not positive or the array is not aligned to its elements.
absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Stream& stream);

namespace internal {

absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor, Executor& executor);
absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Executor& executor);

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_SCALE_H_
