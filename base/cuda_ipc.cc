#include "base/cuda_ipc.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/cuda_api.h"
#include "base/cuda_error.h"
#include "base/cuda_guard.h"
#include "base/log.h"
#include "base/status.h"

namespace lockstep {
namespace {

// What CUDA does not allow these processes is no fault of the call's.
absl::Status SharingStatus(int code, absl::string_view call, int device) {
  const absl::Status status = CudaStatus(code, call, device);
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

}  // namespace

absl::StatusOr<std::string> CudaPciAddress(int device) {
  std::array<char, 32> address = {};
  const int code = TheCudaApi().device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), device);
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(code, "cudaDeviceGetPCIBusId", device));
  return std::string(address.data());
}

absl::Status CheckCudaPeer(int device, const std::string& pci_address) {
  const CudaApi& api = TheCudaApi();
  int peer = 0;
  if (api.device_get_by_pci_bus_id(&peer, pci_address.c_str()) != kCudaSuccess) {
    api.get_last_error();
    return absl::OkStatus();
  }
  if (peer == device) return absl::OkStatus();
  int can = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(api.device_can_access_peer(&can, device, peer), "cudaDeviceCanAccessPeer", device));
  if (can != 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cuda:", device, " has no peer access to cuda:", peer, ", which is at ", pci_address));
}

absl::Status EnableCudaPeer(int device, int peer) {
  if (device == peer) return absl::OkStatus();
  const CudaApi& api = TheCudaApi();
  const CudaGuard guard(api, device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = api.device_enable_peer_access(peer);
  if (code != kCudaPeerAccessAlreadyEnabled) {
    return SharingStatus(code, absl::StrCat("cudaDeviceEnablePeerAccess(", peer, ", 0)"), device);
  }
  api.get_last_error();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ExportCudaMemory(int device, void* memory) {
  const CudaApi& api = TheCudaApi();
  const CudaGuard guard(api, device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  CudaIpcHandle handle = {};
  LOCKSTEP_RETURN_IF_ERROR(
      SharingStatus(api.ipc_get_mem_handle(&handle, memory), "cudaIpcGetMemHandle(&handle, memory)", device));
  return std::string(handle.bytes, sizeof(handle.bytes));
}

absl::StatusOr<void*> OpenCudaMemory(int device, absl::string_view handle) {
  CudaIpcHandle native = {};
  if (handle.size() != sizeof(native.bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a handle of ", handle.size(), " bytes is none of CUDA's"));
  }
  std::copy(handle.begin(), handle.end(), native.bytes);
  const CudaApi& api = TheCudaApi();
  const CudaGuard guard(api, device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  void* memory = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(SharingStatus(api.ipc_open_mem_handle(&memory, native),
                                         "cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess)",
                                         device));
  return memory;
}

void CloseCudaMemory(int device, void* memory) {
  const CudaApi& api = TheCudaApi();
  const CudaGuard guard(api, device);
  const int code = api.ipc_close_mem_handle(memory);
  if (code == kCudaSuccess || code == kCudaUnloading) return;
  LOCKSTEP_LOG(kWarning) << CudaStatus(code, "cudaIpcCloseMemHandle(memory)", device);
}

}  // namespace lockstep
