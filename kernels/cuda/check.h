// Looking for infinities and NaN in an array on a GPU. Streams, threads and errors as in cast.h.

#ifndef KERNELS_CUDA_CHECK_H_
#define KERNELS_CUDA_CHECK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// Adds the number of elements that are infinite or NaN to *on_device, memory of the device. Each part of a complex
// number counts. INVALID_ARGUMENT for integers and bool, and for an array that is not aligned to its elements (complex:
// to the parts).
absl::Status CountNonFinite(DType dtype, const void* data, size_t count, uint64_t* on_device, Stream& stream);

namespace internal {

absl::Status CountNonFinite(DType dtype, const void* data, size_t count, uint64_t* on_device, Executor& executor);

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_CHECK_H_
