#include "base/cuda_probe.h"

#include "absl/strings/str_cat.h"
#include "base/cuda_probe_internal.h"

namespace lockstep {

absl::StatusOr<int> CudaDeviceCount() {
  const internal::CudaCount devices = internal::CountCudaDevices();
  if (!devices.error.empty()) return absl::UnavailableError(absl::StrCat("CUDA: ", devices.error));
  if (devices.count == 0) return absl::UnavailableError("CUDA: no device");
  return devices.count;
}

absl::Status CudaSelfTest() {
  const absl::StatusOr<int> count = CudaDeviceCount();
  if (!count.ok()) return count.status();
  const std::string error = internal::RunCudaSelfTest();
  if (!error.empty()) return absl::InternalError(absl::StrCat("CUDA self test on device 0: ", error));
  return absl::OkStatus();
}

}  // namespace lockstep
