// All of a device_transfers_to_NAME.cu but the format, which it defines as LOCKSTEP_TO: a file for each, so that they compile side
// by side.

#ifndef KERNELS_CUDA_DEVICE_TRANSFERS_INL_H_
#define KERNELS_CUDA_DEVICE_TRANSFERS_INL_H_

#include "kernels/cuda/device_entry_inl.h"
#include "kernels/cuda/table_inl.h"

#define LOCKSTEP_JOIN(a, b) a##b
#define LOCKSTEP_ADD_TRANSFERS(To) \
  void LOCKSTEP_JOIN(AddTransfersTo, To)(KernelTable & table) { AddTransfersTo<DeviceEntry, To>(table); }

namespace lockstep {
namespace kernels {
namespace cuda {
namespace internal {

LOCKSTEP_ADD_TRANSFERS(LOCKSTEP_TO)

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_DEVICE_TRANSFERS_INL_H_
