// Can this process use CUDA? One binary serves machines with and without a driver: the runtime is linked statically and
// answers an error where there is none.

#ifndef BASE_CUDA_PROBE_H_
#define BASE_CUDA_PROBE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// At least 1. UNAVAILABLE with CUDA's own words when there is no driver or no device, and "built without CUDA".
absl::StatusOr<int> CudaDeviceCount();

// Runs a one-thread kernel on device 0 and reads what it wrote: proves that the kernels in this binary suit the device.
// UNAVAILABLE as above; INTERNAL when the device fails.
absl::Status CudaSelfTest();

}  // namespace lockstep

#endif  // BASE_CUDA_PROBE_H_
