// The host's kernels for buckets as kernels of the fake CUDA's (base/device/cuda/cuda_api_testing.h): in streams that are captured,
// too, where the host's own, which are closures, are refused.

#ifndef TESTS_FAKE_CUDA_KERNELS_H_
#define TESTS_FAKE_CUDA_KERNELS_H_

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/check.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "base/device/device.h"
#include "kernels/cpu/bucket_kernels.h"

namespace lockstep {

// Thread-safe. The fake outlives it, and what it launches.
class FakeCudaKernels : public kernels::HostKernels {
 public:
  explicit FakeCudaKernels(FakeCuda* cuda) : cuda_(cuda) {}

 private:
  absl::Status Issue(absl::AnyInvocable<absl::Status()> work, Stream& stream) const override {
    // A graph runs it again and again.
    const auto kernel = std::make_shared<absl::AnyInvocable<absl::Status()>>(std::move(work));
    const int code = cuda_->LaunchKernel(stream.native(), [kernel] { LOCKSTEP_CHECK((*kernel)().ok()); });
    return code == 0 ? absl::OkStatus() : absl::InternalError("the kernel was not launched");
  }

  FakeCuda* const cuda_;
};

}  // namespace lockstep

#endif  // TESTS_FAKE_CUDA_KERNELS_H_
