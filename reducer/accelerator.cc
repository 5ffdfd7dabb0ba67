#include "reducer/accelerator.h"

#include "base/devices.h"
#include "base/status.h"
#include "kernels/cuda/bucket_kernels.h"

namespace lockstep {

absl::StatusOr<Accelerator> FindAccelerator(DeviceId id) {
  Accelerator found;
  LOCKSTEP_ASSIGN_OR_RETURN(found.device, FindDevice(id));
  if (id.kind == DeviceKind::kCuda) found.kernels = kernels::CudaBucketKernels();
  return found;
}

}  // namespace lockstep
