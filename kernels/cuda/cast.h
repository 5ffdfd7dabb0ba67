// Conversion between float formats on a GPU, with a factor applied on the way: the bits of kernels/cpu/cast.h.
//
// What holds for all of kernels/cuda: functions enqueue and return; arrays, which must be memory that the stream's
// device reaches, stay borrowed until the stream has come past them. Thread-safe. INVALID_ARGUMENT before anything is
// enqueued; INTERNAL with CUDA's words when a launch fails; the stream's error when it has one; UNAVAILABLE in a build
// without CUDA.

#ifndef KERNELS_CUDA_CAST_H_
#define KERNELS_CUDA_CAST_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// target[i] = to(source[i] * factor), with the errors of kernels/cpu/cast.h. `saturated` is null or memory of the
// device; then `to` must be a float, and the number of elements that were finite and became infinite (in f8e4m3: NaN)
// is added to it.
//
// `target` may equal `source` exactly if the elements have one size. INVALID_ARGUMENT for any other overlap, and for
// arrays that are not aligned to their elements (complex: to the parts).
absl::Status CastScaled(DType to, void* target, DType from, const void* source, size_t count, double factor,
                        uint64_t* saturated, Stream& stream);

namespace internal {

absl::Status CastScaled(DType to, void* target, DType from, const void* source, size_t count, double factor,
                        uint64_t* saturated, Executor& executor);

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_CAST_H_
