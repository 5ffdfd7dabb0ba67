#include "reducer/pipeline/accelerator.h"

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/host_device.h"
#include "base/status.h"
#include "kernels/cuda/flatten.h"

namespace lockstep {
namespace {

std::atomic<const kernels::BucketKernels*> replaced{nullptr};

}  // namespace

absl::StatusOr<Accelerator> FindAccelerator(const Communicator& communicator, DeviceId id) {
  if (id.kind == DeviceKind::kHost) return Accelerator{HostDevice(), nullptr};
  if (id != communicator.device()) {
    return absl::InvalidArgumentError(absl::StrCat("the gradients are on ", Name(id),
                                                   ", and the communicator was made for ", Name(communicator.device()),
                                                   ": name the device at its creation"));
  }
  const kernels::BucketKernels* const other = replaced.load();
  if (other != nullptr) return Accelerator{communicator.accelerator(), other};
  switch (id.kind) {
    case DeviceKind::kCuda:
      // Not at their first launch, which may be in the middle of a collective.
      LOCKSTEP_RETURN_IF_ERROR(kernels::cuda::Preload(id.index));
      return Accelerator{communicator.accelerator(), kernels::CudaBucketKernels()};
    case DeviceKind::kHost:
      break;
  }
  return absl::UnimplementedError(absl::StrCat("there are no kernels for gradients on ", Name(id)));
}

void ReplaceKernelsForTesting(const kernels::BucketKernels* kernels) { replaced = kernels; }

}  // namespace lockstep
