// All kernels of a device, or their host twins, as data. Private to kernels/cuda: callers use flatten.h, cast.h and the
// rest.

#ifndef KERNELS_CUDA_KERNEL_TABLE_H_
#define KERNELS_CUDA_KERNEL_TABLE_H_

#include "base/types/dtype.h"

namespace lockstep::kernels::cuda {

// Never called as such: an Executor knows the real type.
using KernelFunction = void (*)();

// Indexed by the enumerators' values; null where the combination has no meaning. What merely moves bits, or computes
// with the parts of complex numbers, uses the kernels of a float of the size. arguments.h has each kernel's arguments.
struct KernelTable {
  KernelFunction transfer_small[kDTypeCount][kDTypeCount];  // [to][from], of floats; by the size of the arguments
  KernelFunction transfer_large[kDTypeCount][kDTypeCount];
  KernelFunction transfer_strided[kDTypeCount][kDTypeCount];
  KernelFunction hash;
};

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_KERNEL_TABLE_H_
