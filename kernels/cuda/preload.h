// Loading the kernels ahead of their first launch.

#ifndef KERNELS_CUDA_PRELOAD_H_
#define KERNELS_CUDA_PRELOAD_H_

#include "absl/status/status.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// Loads every kernel onto the device of that index. Call it before the first step: otherwise CUDA loads a kernel at its
// first launch, which may wait for running work, and deadlocks if that work waits for the launch. Thread-safe; cheap if
// everything is loaded. UNAVAILABLE without such a device or without CUDA.
absl::Status Preload(int device);

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_PRELOAD_H_
