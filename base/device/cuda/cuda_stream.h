// A CUDA stream and its events; internal to the CUDA device.

#ifndef BASE_DEVICE_CUDA_CUDA_STREAM_H_
#define BASE_DEVICE_CUDA_CUDA_STREAM_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/device.h"

namespace lockstep {
namespace internal {

// Whether the caller may call CUDA for what was made at `fork_generation`. False in a forked child, which CUDA does not
// support, and in a closure that a stream runs.
bool MayCallCuda(uint64_t fork_generation);
// FAILED_PRECONDITION with the reason; `what` names the object.
absl::Status MayNotCallCuda(uint64_t fork_generation, absl::string_view what);
// The same for a destructor, which does nothing if this is false. In a forked child the objects belong to the parent.
// In a closure, destroying might wait for that closure: the leak is logged.
bool MayDestroyInCuda(uint64_t fork_generation, absl::string_view what);

// `owned`: it is destroyed with the stream. The table outlives all.
std::unique_ptr<Stream> MakeCudaStream(const CudaApi& api, int device, void* native, bool owned,
                                       const std::string& name);
// The calling thread is on the device.
absl::StatusOr<std::unique_ptr<Event>> MakeCudaEvent(const CudaApi& api, int device);

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_STREAM_H_
