// Which body is which kernel of the table, for the devices and for the host alike: `Entry<Body>::Function()` is the
// kernel that runs a body. See execution_inl.h for who includes this.

#ifndef KERNELS_CUDA_TABLE_INL_H_
#define KERNELS_CUDA_TABLE_INL_H_

#include "base/types/dtype.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/strided_inl.h"
#include "kernels/cuda/transfer_inl.h"

namespace lockstep::kernels::cuda {
namespace {

template <template <typename> class Entry, typename To, typename From>
void AddTransfer(KernelTable& table) {
  constexpr int kTo = static_cast<int>(To::kDType);
  constexpr int kFrom = static_cast<int>(From::kDType);
  table.transfer_small[kTo][kFrom] = Entry<Transfer<To, From, kSmallArgumentBytes>>::Function();
  table.transfer_large[kTo][kFrom] = Entry<Transfer<To, From, kLargeArgumentBytes>>::Function();
  table.transfer_strided[kTo][kFrom] = Entry<StridedTransfer<To, From>>::Function();
}

template <template <typename> class Entry, typename To>
void AddTransfersTo(KernelTable& table) {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) AddTransfer<Entry, To, id>(table);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
}

}  // namespace
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_TABLE_INL_H_
