// Which device the calling thread is on, for the length of a call of ours.

#ifndef BASE_DEVICE_CUDA_CUDA_GUARD_H_
#define BASE_DEVICE_CUDA_CUDA_GUARD_H_

#include "absl/status/status.h"
#include "base/device/cuda/cuda_api.h"

namespace lockstep {

// Puts the calling thread on a device and, at its end, back on the one before: the caller may be a thread of the
// framework's, which counts on its own. Threads of ours (base/thread.h) stay where they are put: they count on none,
// and going back to device 0, which they were born on, would give every process a context with memory there, for
// nothing. A framework's thread that has never used its device gets such a context: it had better be on the right one
// before it calls us.
//
// Made and destroyed on one thread. Costs one call of CUDA's where the thread is on the device already.
class CudaGuard {
 public:
  CudaGuard(const CudaApi& api, int device);
  ~CudaGuard();
  CudaGuard(const CudaGuard&) = delete;
  CudaGuard& operator=(const CudaGuard&) = delete;

  // Not OK when the thread could not be put on the device: do not go on.
  const absl::Status& status() const { return status_; }
  // The same as CUDA's number.
  int code() const { return code_; }

 private:
  static constexpr int kNone = -1;

  const CudaApi& api_;
  int go_back_to_ = kNone;
  int code_ = kCudaSuccess;
  absl::Status status_;
};

// Lets the calling thread query and allocate while a thread of the framework's captures a graph, which such calls would
// break otherwise. Made and destroyed on one thread.
class CudaRelaxedCapture {
 public:
  explicit CudaRelaxedCapture(const CudaApi& api);
  ~CudaRelaxedCapture();
  CudaRelaxedCapture(const CudaRelaxedCapture&) = delete;
  CudaRelaxedCapture& operator=(const CudaRelaxedCapture&) = delete;

 private:
  const CudaApi& api_;
  int mode_before_ = kCudaCaptureRelaxed;
};

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_GUARD_H_
