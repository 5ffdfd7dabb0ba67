#include "kernels/cuda/device_kernels.h"

#include <cuda_runtime.h>

#include "kernels/cuda/arguments.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace internal {

// One file each (device_transfers_inl.h), so that they compile side by side.
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) void AddTransfersTo##id(KernelTable& table);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"

void AddHash(KernelTable& table);

}  // namespace internal

const KernelTable& DeviceKernels() {
  static const KernelTable table = [] {
    KernelTable kernels = {};
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) internal::AddTransfersTo##id(kernels);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
    internal::AddHash(kernels);
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
