// Accelerator: the device of a reducer's gradients, and its kernels.

#ifndef REDUCER_PIPELINE_ACCELERATOR_H_
#define REDUCER_PIPELINE_ACCELERATOR_H_

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "kernels/bucket_kernels.h"

namespace lockstep {

struct Accelerator {
  Device* device = nullptr;
  const kernels::BucketKernels* kernels = nullptr;  // null on the host, which needs none
};

// Finds the host, or the communicator's device. INVALID_ARGUMENT for any other device; UNIMPLEMENTED for a kind of
// device without kernels; errors of cuda::Preload.
absl::StatusOr<Accelerator> FindAccelerator(const Communicator& communicator, DeviceId id);

// From now on, devices other than the host use these kernels. They are never destroyed.
void ReplaceKernelsForTesting(const kernels::BucketKernels* kernels);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_ACCELERATOR_H_
