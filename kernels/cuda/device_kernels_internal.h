// The parts of device_kernels.cu's table, one per file so that they compile side by side. Private to kernels/cuda.

#ifndef KERNELS_CUDA_DEVICE_KERNELS_INTERNAL_H_
#define KERNELS_CUDA_DEVICE_KERNELS_INTERNAL_H_

#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace internal {

#define LOCKSTEP_DTYPE_NARROW(number, id, ...) void AddTransfersTo##id(KernelTable& table);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
void AddArrayKernels(KernelTable& table);  // checks and fills

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_DEVICE_KERNELS_INTERNAL_H_
