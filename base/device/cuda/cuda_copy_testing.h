#ifndef BASE_DEVICE_CUDA_CUDA_COPY_TESTING_H_
#define BASE_DEVICE_CUDA_CUDA_COPY_TESTING_H_

#include <cstddef>

namespace lockstep {
namespace internal {

// Issues, in a cudaStream_t, a copy by a kernel between memory that the device reaches, pinned memory of the host included: between two
// places on the host cudaMemcpyAsync keeps its caller until it is done. Returns CUDA's code.
int CopyByKernel(void* target, const void* source, size_t bytes, void* stream);

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_COPY_TESTING_H_
