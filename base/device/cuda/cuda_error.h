// What a failed call of CUDA's runtime says, and which status code tells the caller what to do.

#ifndef BASE_DEVICE_CUDA_CUDA_ERROR_H_
#define BASE_DEVICE_CUDA_CUDA_ERROR_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// OK when `code` (a cudaError_t) is 0. Else "<call> on cuda:<device>: <CUDA's words> (<CUDA's name of the error>)":
//
//   cudaMemcpyAsync(0x7f20, 0x55d0, 4096) in stream "copy-in" on cuda:1: an illegal memory access was encountered
//   (cudaErrorIllegalAddress)
//
// UNAVAILABLE when there is no driver or no device that works, and then with both versions; RESOURCE_EXHAUSTED when
// memory is short; INVALID_ARGUMENT for values, devices and handles; FAILED_PRECONDITION for what a capture or a host
// function may not do; UNIMPLEMENTED for what the device or this binary has not; INTERNAL for the rest. Also clears the
// calling thread's last error, which was ours: the framework must not find it. Call it on the thread of the failed
// call.
absl::Status CudaStatus(int code, absl::string_view call, int device);

// The same of a call that allocates: "cudaMalloc(4096 bytes) on ...". An invalid value is RESOURCE_EXHAUSTED, too: it
// can only be the size.
absl::Status CudaAllocationStatus(int code, absl::string_view function, size_t bytes, int device);

// The same where no device is concerned: "CUDA: <call>: <words> (<name>)".
absl::Status CudaStatus(int code, absl::string_view call);

// Whether the device, or this process's use of it, is lost: every later call answers the same, and no work of any
// stream will run any more.
bool IsLostDevice(int code);

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_ERROR_H_
