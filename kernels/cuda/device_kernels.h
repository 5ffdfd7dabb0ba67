// The kernels of this binary and how they are launched: what a StreamExecutor needs from CUDA. Defined by
// device_kernels.cu or, in a build without CUDA, by device_kernels_stub.cc. Private to kernels/cuda.

#ifndef KERNELS_CUDA_DEVICE_KERNELS_H_
#define KERNELS_CUDA_DEVICE_KERNELS_H_

#include <cstdint>

#include "kernels/cuda/kernel_table.h"

namespace lockstep::kernels::cuda {

const KernelTable& DeviceKernels();

// cudaLaunchKernel with kThreads threads a block, on the current device, which must be the stream's. Returns CUDA's
// code.
int LaunchKernel(KernelFunction kernel, uint32_t blocks, const void* arguments, void* stream);

// Has CUDA load every kernel of the table onto the current device, which it otherwise does at the first launch of each:
// a load may wait for work that is running, and deadlocks where that work waits for what is launched. Returns CUDA's
// code.
int LoadKernels();

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_DEVICE_KERNELS_H_
