#include "base/device/cuda/cuda_error.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"

namespace lockstep {
namespace {

absl::StatusCode StatusCodeOf(int code) {
  switch (code) {
    case kCudaInitializationFailed:
    case kCudaUnloading:
    case kCudaStubLibrary:
    case kCudaInsufficientDriver:
    case kCudaDevicesUnavailable:
    case kCudaNoDevice:
    case kCudaSystemNotReady:
    case kCudaSystemDriverMismatch:
    case kCudaCompatNotSupported:
      return absl::StatusCode::kUnavailable;
    case kCudaOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case kCudaInvalidValue:
    case kCudaInvalidDevice:
    case kCudaInvalidHandle:
      return absl::StatusCode::kInvalidArgument;
    case kCudaNotPermitted:
      return absl::StatusCode::kFailedPrecondition;
    case kCudaNoKernelImage:
    case kCudaNotSupported:
      return absl::StatusCode::kUnimplemented;
    default:
      return kCudaCaptureUnsupported <= code && code <= kCudaCaptureWrongThread ? absl::StatusCode::kFailedPrecondition
                                                                                : absl::StatusCode::kInternal;
  }
}

// "13.0"; "none" where there is none or nobody knows.
std::string VersionText(int (*get_version)(int*)) {
  int version = 0;
  if (get_version(&version) != kCudaSuccess || version == 0) return "none";
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status MakeStatus(int code, absl::string_view attempt) {
  const CudaApi& api = TheCudaApi();
  std::string text = absl::StrCat(attempt, ": ", api.get_error_string(code), " (", api.get_error_name(code), ")");
  const absl::StatusCode status_code = StatusCodeOf(code);
  if (status_code == absl::StatusCode::kUnavailable) {
    absl::StrAppend(&text, "; driver for CUDA ", VersionText(api.driver_get_version), ", runtime ",
                    VersionText(api.runtime_get_version));
  }
  api.get_last_error();
  return absl::Status(status_code, text);
}

}  // namespace

absl::Status CudaStatus(int code, absl::string_view call, int device) {
  if (code == kCudaSuccess) return absl::OkStatus();
  return MakeStatus(code, absl::StrCat(call, " on cuda:", device));
}

absl::Status CudaAllocationStatus(int code, absl::string_view function, size_t bytes, int device) {
  if (code == kCudaSuccess) return absl::OkStatus();
  const absl::Status status = CudaStatus(code, absl::StrCat(function, "(", bytes, " bytes)"), device);
  return code == kCudaInvalidValue ? absl::ResourceExhaustedError(status.message()) : status;
}

absl::Status CudaStatus(int code, absl::string_view call) {
  if (code == kCudaSuccess) return absl::OkStatus();
  return MakeStatus(code, absl::StrCat("CUDA: ", call));
}

bool IsLostDevice(int code) {
  switch (code) {
    case kCudaUnloading:
    case kCudaEccUncorrectable:
    case kCudaNvlinkUncorrectable:
    case kCudaContained:
    case kCudaIllegalAddress:
    case kCudaLaunchTimeout:
    case kCudaContextDestroyed:
    case kCudaAssert:
    case kCudaHardwareStackError:
    case kCudaIllegalInstruction:
    case kCudaMisalignedAddress:
    case kCudaInvalidAddressSpace:
    case kCudaInvalidPc:
    case kCudaLaunchFailure:
    case kCudaTensorMemoryLeak:
      return true;
    default:
      return false;
  }
}

}  // namespace lockstep
