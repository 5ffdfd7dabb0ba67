// A GPU as a Device: its streams, events and memory are CUDA's.
//
// Beyond the contract of Device and Stream:
// - Streams do not synchronise with the legacy default stream, and have the device's greatest priority: they carry
//   communication, which is short and which computing waits for.
// - Closures run on a thread of the driver, possibly one for all streams. They may not call CUDA. Calls of this header
//   return FAILED_PRECONDITION there, and what is destroyed or freed there is leaked with a warning. Kernels and copies
//   that were issued before the stream's error still run.
// - When the device is lost (an illegal address, say), waits end with CUDA's error and events count as reached.
// - Destroying a stream waits for its running closure, then for what the device has been given, 10 s at most.
// - A copy to or from pageable host memory may hold up the caller until it is done.
// - A stream that is being captured into a graph takes copies, records and waits, but neither closures nor Synchronize
//   (FAILED_PRECONDITION).
// - A call leaves the calling thread on the device it was on, unless the thread is a Thread of ours (cuda_guard.h).
// - In a forked child every call returns FAILED_PRECONDITION, and destructors do nothing.

#ifndef BASE_DEVICE_CUDA_CUDA_DEVICE_H_
#define BASE_DEVICE_CUDA_CUDA_DEVICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/device/device.h"

namespace lockstep {

// At least 1. UNAVAILABLE when there is no driver, no device or no CUDA in this build, with CUDA's own words and both
// versions.
absl::StatusOr<int> CudaDeviceCount();

// The process's device of that index. Never destroyed. Thread-safe. UNAVAILABLE as above; INVALID_ARGUMENT when there
// are fewer devices. The first stream, event or allocation sets CUDA up on the device.
//
// BorrowStream takes any cudaStream_t of this device (INVALID_ARGUMENT for another's, from CUDA 12.8 on). Null and
// cudaStreamLegacy are the device's default stream; cudaStreamPerThread is at each call the calling thread's.
// Destroying what it returned destroys the closures that have not begun, and waits only for the one that runs.
absl::StatusOr<Device*> CudaDevice(int index);

// The PCI address of the process's device of that index: "0000:3b:00.0". UNAVAILABLE as above.
absl::StatusOr<std::string> CudaPciAddress(int index);

// Whether the stream is being captured, so that work goes into a graph instead of being done. False on the host.
absl::StatusOr<bool> IsCapturing(Stream& stream);

struct CudaApi;

namespace internal {

// The device of that index over a table of its own, for tests. The table outlives the process.
Device* CudaDeviceOver(const CudaApi& api, int index);

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_DEVICE_H_
