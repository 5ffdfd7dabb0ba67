#include "base/device/cuda/cuda_guard.h"

#include "base/device/cuda/cuda_error.h"
#include "base/thread.h"

namespace lockstep {

CudaGuard::CudaGuard(const CudaApi& api, int device) : api_(api) {
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

CudaGuard::~CudaGuard() {
  // Nothing can be done about a failure here; whoever is on the wrong device then finds out at the next guard.
  if (go_back_to_ != kNone && api_.set_device(go_back_to_) != kCudaSuccess) api_.get_last_error();
}

CudaRelaxedCapture::CudaRelaxedCapture(const CudaApi& api) : api_(api) {
  if (api_.thread_exchange_stream_capture_mode(&mode_before_) != kCudaSuccess) {
    api_.get_last_error();
    mode_before_ = kCudaCaptureRelaxed;
  }
}

CudaRelaxedCapture::~CudaRelaxedCapture() {
  if (mode_before_ != kCudaCaptureRelaxed) api_.thread_exchange_stream_capture_mode(&mode_before_);
}

}  // namespace lockstep
