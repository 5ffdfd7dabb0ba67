// Which body is which kernel of the table, for the devices and for the host alike: `Entry<Body>::Function()` is the
// kernel that runs a body. See execution_inl.h for who includes this.

#ifndef KERNELS_CUDA_TABLE_INL_H_
#define KERNELS_CUDA_TABLE_INL_H_

#include "base/types/dtype.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/array_inl.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/strided_inl.h"
#include "kernels/cuda/transfer_inl.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

template <template <typename> class Entry, typename To, typename From>
void AddTransfer(KernelTable& table) {
  constexpr int kTo = static_cast<int>(To::kDType);
  constexpr int kFrom = static_cast<int>(From::kDType);
  table.transfer_small[kTo][kFrom] = Entry<Transfer<To, From, kSmallArgumentBytes, false>>::Function();
  table.transfer_large[kTo][kFrom] = Entry<Transfer<To, From, kLargeArgumentBytes, false>>::Function();
  table.transfer_counting[kTo][kFrom] = Entry<Transfer<To, From, kSmallArgumentBytes, true>>::Function();
  table.transfer_strided[kTo][kFrom] = Entry<StridedTransfer<To, From>>::Function();
}

template <template <typename> class Entry, typename To>
void AddTransfersTo(KernelTable& table) {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) AddTransfer<Entry, To, id>(table);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
}

template <template <typename> class Entry, typename Format>
void AddCheck(KernelTable& table) {
  table.count_non_finite[static_cast<int>(Format::kDType)] = Entry<CountNonFinite<Format>>::Function();
}

template <template <typename> class Entry>
void AddChecks(KernelTable& table) {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) AddCheck<Entry, id>(table);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
}

template <template <typename> class Entry>
void AddFills(KernelTable& table) {
  table.fill[0] = Entry<Fill<uint8_t>>::Function();
  table.fill[1] = Entry<Fill<uint16_t>>::Function();
  table.fill[2] = Entry<Fill<uint32_t>>::Function();
  table.fill[3] = Entry<Fill<uint64_t>>::Function();
  table.fill[4] = Entry<Fill<WideBits>>::Function();
}

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_TABLE_INL_H_
