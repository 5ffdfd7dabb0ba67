// Do the kernels in this binary run on this machine's GPU?

#ifndef BASE_DEVICE_CUDA_CUDA_PROBE_H_
#define BASE_DEVICE_CUDA_CUDA_PROBE_H_

#include "absl/status/status.h"

namespace lockstep {

// Runs a one-thread kernel on device 0 and reads what it wrote, 10 s at most. UNAVAILABLE where there is no CUDA
// (base/device/cuda/cuda_device.h); else why it failed.
absl::Status CudaSelfTest();

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_PROBE_H_
