// Sets the calling thread's device for the length of a call.

#ifndef BASE_DEVICE_CUDA_CUDA_GUARD_H_
#define BASE_DEVICE_CUDA_CUDA_GUARD_H_

#include "absl/status/status.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/thread.h"

namespace lockstep {

// Puts the calling thread on a device. The destructor puts a thread of the framework back on its former device, since the
// framework relies on that. This creates a context there if the thread has never used that device: it should set its device
// before it calls us. Threads of ours (base/thread.h) stay on the new device, because a way back to device 0, where threads
// start, would give every process a context with memory there.
//
// Made and destroyed on one thread. COST  one call of CUDA if the thread is on the device already.
class CudaGuard {
 public:
  CudaGuard(const CudaApi& api, int device) : api_(api) {
    int before = kNone;
    code_ = api_.get_device(&before);
    if (code_ != kCudaSuccess) {
      status_ = CudaStatus(code_, "cudaGetDevice(&device)");
      return;
    }
    if (before == device) return;
    code_ = api_.set_device(device);
    status_ = CudaStatus(code_, "cudaSetDevice(device)", device);
    if (status_.ok() && !Thread::IsOurs()) go_back_to_ = before;
  }
  ~CudaGuard() {
    // Nothing can be done about a failure here; whoever is on the wrong device then finds out at the next guard.
    if (go_back_to_ != kNone && api_.set_device(go_back_to_) != kCudaSuccess) api_.get_last_error();
  }
  CudaGuard(const CudaGuard&) = delete;
  CudaGuard& operator=(const CudaGuard&) = delete;

  // An error if the thread could not be put on the device: make no calls for it then.
  const absl::Status& status() const { return status_; }
  // The same as a cudaError_t.
  int code() const { return code_; }

 private:
  static constexpr int kNone = -1;

  const CudaApi& api_;
  int go_back_to_ = kNone;
  int code_ = kCudaSuccess;
  absl::Status status_;
};

// Lets the calling thread query and allocate without breaking a capture that a thread of the framework has under way. Made
// and destroyed on one thread.
class CudaRelaxedCapture {
 public:
  explicit CudaRelaxedCapture(const CudaApi& api) : api_(api) {
    if (api_.thread_exchange_stream_capture_mode(&mode_before_) != kCudaSuccess) {
      api_.get_last_error();
      mode_before_ = kCudaCaptureRelaxed;
    }
  }
  ~CudaRelaxedCapture() {
    if (mode_before_ != kCudaCaptureRelaxed) api_.thread_exchange_stream_capture_mode(&mode_before_);
  }
  CudaRelaxedCapture(const CudaRelaxedCapture&) = delete;
  CudaRelaxedCapture& operator=(const CudaRelaxedCapture&) = delete;

 private:
  const CudaApi& api_;
  int mode_before_ = kCudaCaptureRelaxed;
};

}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_GUARD_H_
