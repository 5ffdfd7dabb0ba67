// Loading the kernels ahead of their first launch.

#ifndef KERNELS_CUDA_PRELOAD_H_
#define KERNELS_CUDA_PRELOAD_H_

#include "absl/status/status.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// Has CUDA load every kernel onto the device of that index, which it otherwise does at the first launch of each: that
// may wait for work that is running, and deadlocks where such work waits for what is about to be launched. Call it
// before the first step. Thread-safe; what is loaded already costs little. UNAVAILABLE where there is no such device or
// no CUDA.
absl::Status Preload(int device);

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_PRELOAD_H_
