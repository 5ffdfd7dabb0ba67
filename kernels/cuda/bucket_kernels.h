// BucketKernels on a GPU.

#ifndef KERNELS_CUDA_BUCKET_KERNELS_H_
#define KERNELS_CUDA_BUCKET_KERNELS_H_

#include "kernels/bucket_kernels.h"

namespace lockstep {
namespace kernels {

// Of CUDA streams, whose device the memory is on. Never destroyed. In a build without CUDA every call is UNAVAILABLE.
const BucketKernels* CudaBucketKernels();

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_BUCKET_KERNELS_H_
