// All of a device_transfers_to_NAME.cu but the format, which it defines as LOCKSTEP_TO: a file for each, so that they compile side
// by side.

#ifndef KERNELS_CUDA_DEVICE_TRANSFERS_INL_H_
#define KERNELS_CUDA_DEVICE_TRANSFERS_INL_H_

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/table_inl.h"

#define LOCKSTEP_JOIN(a, b) a##b
#define LOCKSTEP_ADD_TRANSFERS(To) \
  void LOCKSTEP_JOIN(AddTransfersTo, To)(KernelTable & table) { AddTransfersTo<DeviceEntry, To>(table); }

namespace lockstep::kernels::cuda {
namespace {

// So that a processor has as many loads under way as its share of the memory needs, and registers enough not to spill.
inline constexpr int kBlocksPerProcessor = 4;

template <typename Body>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    RunBody(const __grid_constant__ typename Body::Arguments arguments) {
  Body::Run(arguments, blockIdx.x, threadIdx.x);
}

template <typename Body>
struct DeviceEntry {
  static KernelFunction Function() { return reinterpret_cast<KernelFunction>(&RunBody<Body>); }
};

}  // namespace

namespace internal {

LOCKSTEP_ADD_TRANSFERS(LOCKSTEP_TO)

}  // namespace internal
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_DEVICE_TRANSFERS_INL_H_
