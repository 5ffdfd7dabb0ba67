// Kernels for tests: defined by cuda_kernels_testing.cu or, in a build without CUDA, by its stub. Plain C++, so that nvcc sees
// no Abseil. Both return CUDA's code.

#ifndef BASE_DEVICE_CUDA_CUDA_KERNELS_TESTING_H_
#define BASE_DEVICE_CUDA_CUDA_KERNELS_TESTING_H_

#include <cstddef>

namespace lockstep {
namespace internal {

// Issues, in a cudaStream_t, a copy by a kernel between memory that the device reaches, pinned memory of the host included: between two
// places on the host cudaMemcpyAsync keeps its caller until it is done.
int CopyByKernel(void* target, const void* source, size_t bytes, void* stream);

// *target = value, in the order of the stream.
int LaunchWriteInt(int* target, int value, void* stream);

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_KERNELS_TESTING_H_
