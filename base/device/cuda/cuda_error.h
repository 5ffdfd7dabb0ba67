// Turns errors of CUDA's runtime into absl::Status.

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
// ERRORS   UNAVAILABLE          no driver, or no device that works; names both versions
//          RESOURCE_EXHAUSTED   memory is short
//          INVALID_ARGUMENT     values, devices, handles
//          FAILED_PRECONDITION  what a capture or a host function may not do
//          UNIMPLEMENTED        the device or this binary lacks it
//          INTERNAL             all else
// THREADS  Call it on the thread of the failed call. It clears that thread's last error, so that the framework does not
//          find it.
absl::Status CudaStatus(int code, absl::string_view call, int device);

// The same for a call that allocates: "cudaMalloc(4096 bytes) on ...". An invalid value is RESOURCE_EXHAUSTED, too, since
// only the size can be invalid.
absl::Status CudaAllocationStatus(int code, absl::string_view function, size_t bytes, int device);

// The same for a call without a device: "CUDA: <call>: <words> (<name>)".
absl::Status CudaStatus(int code, absl::string_view call);

// Whether the device, or this process's use of it, is lost: every later call returns the same error, and no stream executes
// any more work.
bool IsLostDevice(int code);

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_ERROR_H_
