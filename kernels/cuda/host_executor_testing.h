// Runs the kernels' bodies on the calling thread, block by block and thread by thread, on memory of the host that is
// said to be a device's: what tests judge without a device. Counts launches, and can refuse large arguments as old
// drivers do.

#ifndef KERNELS_CUDA_HOST_EXECUTOR_TESTING_H_
#define KERNELS_CUDA_HOST_EXECUTOR_TESTING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class HostExecutor final : public Executor {
 public:
  explicit HostExecutor(bool takes_large_arguments = true) : takes_large_arguments_(takes_large_arguments) {}

  DeviceId device() const override { return {DeviceKind::kCuda, 0}; }
  const KernelTable& kernels() const override;
  bool takes_large_arguments() const override { return takes_large_arguments_; }
  absl::Status Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) override;

  size_t launches() const { return launches_; }

 private:
  const bool takes_large_arguments_;
  size_t launches_ = 0;
};

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_HOST_EXECUTOR_TESTING_H_
