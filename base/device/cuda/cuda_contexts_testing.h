// One GPU as several devices, for tests: each is a context of its own on cuda:0, which is what all of them call themselves. Contexts
// share neither queues nor locks nor memory of the device, so ranks that are threads have the GPU in common as ranks that are
// processes do. In one context they would hold each other up: who frees memory there, say, keeps all other callers waiting
// until the context's streams are idle. Copies between pinned memory, which tests have in the place of the device's, are issued and not
// awaited, as those of the device's memory are.

#ifndef BASE_DEVICE_CUDA_CUDA_CONTEXTS_TESTING_H_
#define BASE_DEVICE_CUDA_CUDA_CONTEXTS_TESTING_H_

#include "absl/status/statusor.h"
#include "base/device/device.h"

namespace lockstep {

constexpr int kCudaContexts = 16;

// The device of that context, of [0, kCudaContexts), which is made when it is first used; the first one is the runtime's own. Never
// destroyed. Calling a device puts the calling thread into its context for good. From the first call on, a table of this in the place of
// CUDA's (base/device/cuda/cuda_api.h) leaves each thread in whichever of these contexts it is: so a kernel is launched where its
// stream is. The first call is none while others call CUDA; then thread-safe. Where another CUDA has taken the place of the GPU's
// before, all are its cuda:0. INVALID_ARGUMENT for another number; UNAVAILABLE where there is no GPU or no driver.
absl::StatusOr<Device*> CudaDeviceInContext(int context);

// Puts the calling thread into a context, as a framework's thread is on its device. Nothing happens where CudaDeviceInContext has not
// been called or has found another CUDA. Returns CUDA's code.
int EnterCudaContext(int context);

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_CONTEXTS_TESTING_H_
