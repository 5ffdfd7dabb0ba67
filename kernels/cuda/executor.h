// Who runs a kernel: a CUDA stream or, in tests, the host (rig_testing.h). What prepares
// arguments knows only this, so that tests of it need no device. Private to kernels/cuda.

#ifndef KERNELS_CUDA_EXECUTOR_H_
#define KERNELS_CUDA_EXECUTOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep::kernels::cuda {

class Executor {
 public:
  virtual ~Executor() = default;

  // Where arrays must be.
  virtual DeviceId device() const = 0;
  virtual const KernelTable& kernels() const = 0;
  // Whether a launch takes kLargeArgumentBytes of arguments.
  virtual bool takes_large_arguments() const = 0;

  // Enqueues `blocks` blocks, at least one, of a kernel of the table. `arguments` are those that it declares; they are
  // copied.
  virtual absl::Status Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) = 0;
};

// Runs kernels in a CUDA stream.
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

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_EXECUTOR_H_
