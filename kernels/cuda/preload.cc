#include "kernels/cuda/preload.h"

#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/status.h"
#include "kernels/cuda/device_kernels.h"

namespace lockstep {
namespace kernels {
namespace cuda {

absl::Status Preload(int device) {
  const CudaGuard guard(TheCudaApi(), device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  return CudaStatus(LoadKernels(), "cudaFuncGetAttributes of the kernels", device);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
