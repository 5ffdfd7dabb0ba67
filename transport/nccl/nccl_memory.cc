#include "transport/nccl/nccl_memory.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/status.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<NcclMemory>> NcclMemory::Allocate(const NcclLibrary* library, int device, size_t bytes) {
  const CudaGuard guard(TheCudaApi(), device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  void* data = nullptr;
  const nccl::Result result = library->api().MemAlloc(&data, bytes);
  if (result != nccl::kSuccess) {
    // NCCL's code for it is that of any failed call of CUDA's.
    return absl::ResourceExhaustedError(
        absl::StrCat("ncclMemAlloc of ", bytes, " bytes on cuda:", device, ": ", library->VersionName(), ": ",
                     library->api().GetErrorString(result), ": ", library->api().GetLastError(nullptr)));
  }
  return std::unique_ptr<NcclMemory>(new NcclMemory(library, device, static_cast<char*>(data), bytes));
}

NcclMemory::~NcclMemory() {
  const CudaGuard guard(TheCudaApi(), device_);
  if (guard.status().ok()) library_->api().MemFree(data_);
}

}  // namespace lockstep
