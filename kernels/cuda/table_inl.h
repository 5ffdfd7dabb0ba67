// Which body is which kernel of the table, for the devices and for the host alike: `Entry<Body>::Function()` is the
// kernel that runs a body. See execution_inl.h for who includes this.

#ifndef KERNELS_CUDA_TABLE_INL_H_
#define KERNELS_CUDA_TABLE_INL_H_

#include "base/dtype.h"
#include "base/reduce_op.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/array_inl.h"
#include "kernels/cuda/combine_inl.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/reduce_inl.h"
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
  AddTransfer<Entry, To, F16>(table);
  AddTransfer<Entry, To, BF16>(table);
  AddTransfer<Entry, To, F32>(table);
  AddTransfer<Entry, To, F64>(table);
  AddTransfer<Entry, To, F8E4M3>(table);
  AddTransfer<Entry, To, F8E5M2>(table);
}

template <template <typename> class Entry, typename Combination>
void AddReduction(KernelTable& table, DType dtype, ReduceOp op) {
  table.reduce[static_cast<int>(dtype)][static_cast<int>(op)] = Entry<Reduce<Combination, PlainReader>>::Function();
}

// `Unsigned` is the type for what depends on the bits alone.
template <template <typename> class Entry, typename T, typename Unsigned>
void AddInteger(KernelTable& table, DType dtype) {
  AddReduction<Entry, CombineIntegers<Unsigned, Add>>(table, dtype, ReduceOp::kSum);
  AddReduction<Entry, CombineIntegers<Unsigned, Multiply>>(table, dtype, ReduceOp::kProd);
  AddReduction<Entry, CombineIntegers<T, Lesser>>(table, dtype, ReduceOp::kMin);
  AddReduction<Entry, CombineIntegers<T, Greater>>(table, dtype, ReduceOp::kMax);
  AddReduction<Entry, CombineIntegers<Unsigned, And>>(table, dtype, ReduceOp::kAnd);
  AddReduction<Entry, CombineIntegers<Unsigned, Or>>(table, dtype, ReduceOp::kOr);
  AddReduction<Entry, CombineIntegers<Unsigned, Xor>>(table, dtype, ReduceOp::kXor);
  table.divide[static_cast<int>(dtype)] = Entry<DivideTowardZero<T>>::Function();
}

template <template <typename> class Entry>
void AddIntegers(KernelTable& table) {
  AddInteger<Entry, uint8_t, uint8_t>(table, DType::kU8);
  AddInteger<Entry, int8_t, uint8_t>(table, DType::kI8);
  AddInteger<Entry, int32_t, uint32_t>(table, DType::kI32);
  AddInteger<Entry, uint32_t, uint32_t>(table, DType::kU32);
  AddInteger<Entry, int64_t, uint64_t>(table, DType::kI64);
  AddInteger<Entry, uint64_t, uint64_t>(table, DType::kU64);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kOr}) {
    AddReduction<Entry, CombineBools<Or>>(table, DType::kBool, op);
  }
  for (const ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kAnd}) {
    AddReduction<Entry, CombineBools<And>>(table, DType::kBool, op);
  }
  AddReduction<Entry, CombineBools<Xor>>(table, DType::kBool, ReduceOp::kXor);
}

template <template <typename> class Entry, typename Format>
void AddFloat(KernelTable& table) {
  AddReduction<Entry, CombineFloats<Format, Add>>(table, Format::kDType, ReduceOp::kSum);
  AddReduction<Entry, CombineFloats<Format, Multiply>>(table, Format::kDType, ReduceOp::kProd);
  AddReduction<Entry, OrderFloats<Format, Lesser>>(table, Format::kDType, ReduceOp::kMin);
  AddReduction<Entry, OrderFloats<Format, Greater>>(table, Format::kDType, ReduceOp::kMax);
  constexpr int kIndex = static_cast<int>(Format::kDType);
  table.scaled_sum[kIndex] = Entry<Reduce<SumScaled<Format>, ScalingReader>>::Function();
  table.count_non_finite[kIndex] = Entry<CountNonFinite<Format>>::Function();
}

template <template <typename> class Entry>
void AddFloats(KernelTable& table) {
  AddFloat<Entry, F16>(table);
  AddFloat<Entry, BF16>(table);
  AddFloat<Entry, F32>(table);
  AddFloat<Entry, F64>(table);
  AddFloat<Entry, F8E4M3>(table);
  AddFloat<Entry, F8E5M2>(table);
  AddReduction<Entry, MultiplyComplex<F32>>(table, DType::kComplex64, ReduceOp::kProd);
  AddReduction<Entry, MultiplyComplex<F64>>(table, DType::kComplex128, ReduceOp::kProd);
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
