// Who runs a kernel: a CUDA stream (stream_executor.h) or, in tests, the host (host_executor.h). What prepares
// arguments knows only this, so that tests of it need no device. Private to kernels/cuda.

#ifndef KERNELS_CUDA_EXECUTOR_H_
#define KERNELS_CUDA_EXECUTOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {

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

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_EXECUTOR_H_
