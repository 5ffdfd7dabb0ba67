#include "base/device/cuda/cuda_probe.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/device/cuda/cuda_probe_internal.h"
#include "base/device/device.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int kWritten = 0x10C57E9;
constexpr int kTimeoutMs = 10000;

absl::Status WriteAndRead(Device& device, int* target) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("self test"));
  const CudaGuard guard(TheCudaApi(), device.id().index);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  int read = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(internal::LaunchWriteInt(target, kWritten, stream->native()), "kernel launch", device.id().index));
  LOCKSTEP_RETURN_IF_ERROR(stream->Copy(&read, target, sizeof(read)));
  LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::AfterMs(kTimeoutMs)));
  if (read == kWritten) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the kernel wrote ", read, " instead of ", kWritten));
}

}  // namespace

absl::Status CudaSelfTest() {
  LOCKSTEP_ASSIGN_OR_RETURN(Device* const device, CudaDevice(0));
  LOCKSTEP_ASSIGN_OR_RETURN(void* const target, device->Allocate(sizeof(int)));
  const absl::Status result = WriteAndRead(*device, static_cast<int*>(target));
  device->Free(target);
  return Annotate(result, "CUDA self test on device 0");
}

}  // namespace lockstep
