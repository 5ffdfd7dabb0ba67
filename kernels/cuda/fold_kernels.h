// FoldKernels on GPUs: one launch for each call.

#ifndef KERNELS_CUDA_FOLD_KERNELS_H_
#define KERNELS_CUDA_FOLD_KERNELS_H_

#include "kernels/fold_kernels.h"

namespace lockstep {
namespace kernels {

// For streams of CUDA devices (base/cuda_device.h), with the errors of kernels/cuda/reduce.h and scale.h. Never
// destroyed.
const FoldKernels* CudaFoldKernels();

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_FOLD_KERNELS_H_
