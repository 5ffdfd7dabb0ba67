#include "kernels/cuda/executor.h"

#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/status.h"
#include "kernels/cuda/device_kernels.h"

namespace lockstep::kernels::cuda {

absl::StatusOr<StreamExecutor> StreamExecutor::Create(Stream& stream) {
  if (stream.device().kind != DeviceKind::kCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("a kernel for CUDA cannot run in a stream of ", Name(stream.device())));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream.status());
  return StreamExecutor(stream.device(), stream.native());
}

const KernelTable& StreamExecutor::kernels() const { return DeviceKernels(); }

bool StreamExecutor::takes_large_arguments() const {
  static const bool kTakesThem = [] {
    constexpr int kCuda121 = 12010;
    int version = 0;
    return TheCudaApi().driver_get_version(&version) == kCudaSuccess && version >= kCuda121;
  }();
  return kTakesThem;
}

absl::Status StreamExecutor::Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) {
  const CudaGuard guard(TheCudaApi(), device_.index);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = LaunchKernel(kernel, blocks, arguments, stream_);
  return code == kCudaSuccess
             ? absl::OkStatus()
             : CudaStatus(code, absl::StrCat("launch of a kernel with ", blocks, " blocks"), device_.index);
}

}  // namespace lockstep::kernels::cuda
