// Accelerator: the device that a reducer's gradients are on, with what works there.

#ifndef REDUCER_ACCELERATOR_H_
#define REDUCER_ACCELERATOR_H_

#include "absl/status/statusor.h"
#include "base/device.h"
#include "kernels/bucket_kernels.h"

namespace lockstep {

struct Accelerator {
  Device* device = nullptr;
  const kernels::BucketKernels* kernels = nullptr;  // null on the host, which needs none
};

// UNAVAILABLE where there is no such device, or no way to use it in this build.
absl::StatusOr<Accelerator> FindAccelerator(DeviceId id);

}  // namespace lockstep

#endif  // REDUCER_ACCELERATOR_H_
