// The kernel of cuda_probe.cc: defined by cuda_probe.cu or, in a build without CUDA, by cuda_probe_stub.cc.
// Plain C++, so that nvcc sees no Abseil.

#ifndef BASE_DEVICE_CUDA_CUDA_PROBE_INTERNAL_H_
#define BASE_DEVICE_CUDA_CUDA_PROBE_INTERNAL_H_

namespace lockstep {
namespace internal {

// *target = value, in the order of the stream (a cudaStream_t). Returns CUDA's code.
int LaunchWriteInt(int* target, int value, void* stream);

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_PROBE_INTERNAL_H_
