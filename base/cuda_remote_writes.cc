#include "base/cuda_remote_writes.h"

#include "absl/strings/str_cat.h"
#include "base/cuda_api.h"
#include "base/cuda_error.h"
#include "base/status.h"

namespace lockstep {

absl::Status CheckCudaRemoteWrites(int device) {
  const CudaApi& api = TheCudaApi();
  int devices = 0;
  if (api.get_device_count(&devices) != kCudaSuccess || device >= devices) {
    api.get_last_error();
    return absl::OkStatus();
  }
  bool ordered = false;
  bool flushed = false;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(api.device_get_remote_writes(&ordered, &flushed, device),
                                      "cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering)",
                                      device));
  if (ordered || flushed) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      "cuda:", device, " keeps no order of what a network writes there, and its streams cannot flush that"));
}

}  // namespace lockstep
