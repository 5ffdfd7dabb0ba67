#include "reducer/accelerator.h"

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/host_device.h"
#include "kernels/cuda/bucket_kernels.h"

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
  const kernels::BucketKernels* const kernels = replaced.load();
  return Accelerator{communicator.accelerator(), kernels == nullptr ? kernels::CudaBucketKernels() : kernels};
}

void ReplaceKernelsForTesting(const kernels::BucketKernels* kernels) { replaced = kernels; }

}  // namespace lockstep
