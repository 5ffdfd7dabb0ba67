// Runs a body on a device. See execution_inl.h for who includes this: .cu files only.

#ifndef KERNELS_CUDA_DEVICE_ENTRY_INL_H_
#define KERNELS_CUDA_DEVICE_ENTRY_INL_H_

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

// So that a processor has as many loads under way as its share of the memory needs, and registers enough not to spill.
inline constexpr int kBlocksPerProcessor = 4;

template <typename Body>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    RunBody(const __grid_constant__ typename Body::Arguments arguments) {
  Body::Run(arguments, blockIdx.x, threadIdx.x);
}

template <typename Body>
struct DeviceEntry {
  static KernelFunction Function() { return reinterpret_cast<KernelFunction>(&RunBody<Body>); }
};

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_DEVICE_ENTRY_INL_H_
