#include "base/device/cuda/cuda_api.h"
#include "kernels/cuda/device_kernels.h"

namespace lockstep::kernels::cuda {

// There is no stream to launch them in either.

const KernelTable& DeviceKernels() {
  static const KernelTable kNone = {};
  return kNone;
}

int LaunchKernel(KernelFunction, uint32_t, const void*, void*) { return kCudaNotSupported; }

int LoadKernels() { return kCudaNotSupported; }

}  // namespace lockstep::kernels::cuda
