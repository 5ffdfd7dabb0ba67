// Memory of a GPU before several processes: CUDA's legacy handles (cudaIpcGetMemHandle).
//
// Thread-safe. Errors are CudaStatus's (base/cuda_error.h); UNAVAILABLE says that these processes or these GPUs
// cannot share, for instance in a container that does not allow it.

#ifndef BASE_CUDA_IPC_H_
#define BASE_CUDA_IPC_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// CUDA puts smaller allocations together, and a handle is of all that lies together.
inline constexpr size_t kCudaIpcGranularity = size_t{2} << 20;

// Which of its host's GPUs a device is: "0000:3b:00.0".
absl::StatusOr<std::string> CudaPciAddress(int device);

// Whether kernels on the device can reach memory of the GPU with that address: it is the same one, or there is peer
// access between the two. UNAVAILABLE names both. OK as well for a GPU that this process does not see
// (CUDA_VISIBLE_DEVICES): opening its memory tells.
absl::Status CheckCudaPeer(int device, const std::string& pci_address);

// Has kernels on the device reach memory of another device of this process. Idempotent.
absl::Status EnableCudaPeer(int device, int peer);

// What another process opens the memory by: the base of an allocation by cudaMalloc (Device::Allocate), of a multiple
// of kCudaIpcGranularity bytes.
absl::StatusOr<std::string> ExportCudaMemory(int device, void* memory);

// Memory that another process has exported, as kernels on the device reach it; CUDA refuses it to the one that did.
// The exporter must not free it before it is closed everywhere.
absl::StatusOr<void*> OpenCudaMemory(int device, absl::string_view handle);

// When nothing that was enqueued uses it any more. Not in a forked child.
void CloseCudaMemory(int device, void* memory);

}  // namespace lockstep

#endif  // BASE_CUDA_IPC_H_
