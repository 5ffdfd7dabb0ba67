#include "kernels/cuda/device_entry_inl.h"
#include "kernels/cuda/device_kernels_internal.h"
#include "kernels/cuda/table_inl.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace internal {

void AddArrayKernels(KernelTable& table) {
  AddChecks<DeviceEntry>(table);
  AddFills<DeviceEntry>(table);
}

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
