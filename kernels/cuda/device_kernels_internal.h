// The parts of device_kernels.cu's table, one per file so that they compile side by side. Private to kernels/cuda.

#ifndef KERNELS_CUDA_DEVICE_KERNELS_INTERNAL_H_
#define KERNELS_CUDA_DEVICE_KERNELS_INTERNAL_H_

#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace internal {

void AddTransfersToF16(KernelTable& table);
void AddTransfersToBF16(KernelTable& table);
void AddTransfersToF32(KernelTable& table);
void AddTransfersToF64(KernelTable& table);
void AddTransfersToF8E4M3(KernelTable& table);
void AddTransfersToF8E5M2(KernelTable& table);
void AddArrayKernels(KernelTable& table);  // checks and fills

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_DEVICE_KERNELS_INTERNAL_H_
