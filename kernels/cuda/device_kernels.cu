#include "kernels/cuda/device_kernels.h"

#include <cuda_runtime.h>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/device_kernels_internal.h"

namespace lockstep {
namespace kernels {
namespace cuda {

const KernelTable& DeviceKernels() {
  static const KernelTable table = [] {
    KernelTable kernels = {};
    internal::AddTransfersToF16(kernels);
    internal::AddTransfersToBF16(kernels);
    internal::AddTransfersToF32(kernels);
    internal::AddTransfersToF64(kernels);
    internal::AddTransfersToF8E4M3(kernels);
    internal::AddTransfersToF8E5M2(kernels);
    internal::AddArrayKernels(kernels);
    return kernels;
  }();
  return table;
}

int LaunchKernel(KernelFunction kernel, uint32_t blocks, const void* arguments, void* stream) {
  void* parameters[] = {const_cast<void*>(arguments)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(kThreads), parameters, 0,
                          static_cast<cudaStream_t>(stream));
}

int LoadKernels() {
  static_assert(sizeof(KernelTable) % sizeof(KernelFunction) == 0, "a table is functions and nothing else");
  const auto* const kernels = reinterpret_cast<const KernelFunction*>(&DeviceKernels());
  for (size_t i = 0; i < sizeof(KernelTable) / sizeof(KernelFunction); ++i) {
    if (kernels[i] == nullptr) continue;
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernels[i]));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
