#include "base/device/devices.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/device/host_device.h"
#include "base/status.h"

namespace lockstep {
namespace {

// On the declared device, or where the thread is, since asking sets CUDA up there.
absl::StatusOr<CudaPointer> AskCuda(const void* pointer, DeviceId declared) {
  const CudaApi& api = TheCudaApi();
  int device = declared.index;
  if (declared.kind == DeviceKind::kHost) {
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(api.get_device(&device), "cudaGetDevice(&device)"));
  }
  const CudaGuard guard(api, device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  CudaPointer found;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(
      api.pointer_get_attributes(&found, pointer),
      absl::StrCat("cudaPointerGetAttributes(0x", absl::Hex(reinterpret_cast<uintptr_t>(pointer)), ")"), device));
  return found;
}

}  // namespace

absl::StatusOr<Device*> FindDevice(DeviceId device) {
  switch (device.kind) {
    case DeviceKind::kHost:
      if (device.index == 0) return HostDevice();
      break;
    case DeviceKind::kCuda:
      return CudaDevice(device.index);
  }
  return absl::InvalidArgumentError(absl::StrCat("no device is ", Name(device.kind), ":", device.index));
}

absl::Status CheckPointer(const void* pointer, DeviceId declared) {
  if (pointer == nullptr) return absl::OkStatus();
  const absl::StatusOr<CudaPointer> found = AskCuda(pointer, declared);
  // Without CUDA all memory is the host's.
  if (absl::IsUnavailable(found.status()) && declared.kind == DeviceKind::kHost) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(found);
  if (found->kind == CudaPointer::kPinned || found->kind == CudaPointer::kManaged) return absl::OkStatus();
  DeviceId actual;
  if (found->kind == CudaPointer::kDevice) actual = {DeviceKind::kCuda, found->device};
  if (actual == declared) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(pointer)),
                                                 " is memory of ", Name(actual), ", but ", Name(declared),
                                                 " was declared"));
}

}  // namespace lockstep
