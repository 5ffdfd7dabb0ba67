// BucketKernels on GPUs: a launch for a bucket's gradients and its trailer, and one that asks the trailer on the device.

#ifndef KERNELS_CUDA_BUCKET_KERNELS_H_
#define KERNELS_CUDA_BUCKET_KERNELS_H_

#include "kernels/bucket_kernels.h"

namespace lockstep {
namespace kernels {

// For streams of CUDA devices (base/device/cuda/cuda_device.h), with the errors of kernels/cuda/flatten.h. Never destroyed.
const BucketKernels* CudaBucketKernels();

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_BUCKET_KERNELS_H_
