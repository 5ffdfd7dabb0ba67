// Runs kernels in a CUDA stream. Private to kernels/cuda.

#ifndef KERNELS_CUDA_STREAM_EXECUTOR_H_
#define KERNELS_CUDA_STREAM_EXECUTOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class StreamExecutor final : public Executor {
 public:
  // The stream stays borrowed. INVALID_ARGUMENT when it is not CUDA's; its error when it has one.
  static absl::StatusOr<StreamExecutor> Create(Stream& stream);

  DeviceId device() const override { return device_; }
  const KernelTable& kernels() const override;
  bool takes_large_arguments() const override;
  absl::Status Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) override;

 private:
  StreamExecutor(DeviceId device, void* stream) : device_(device), stream_(stream) {}

  DeviceId device_;
  void* stream_;
};

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_STREAM_EXECUTOR_H_
