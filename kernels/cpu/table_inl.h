// The table of all kernels, from the templates of the other *_inl.h. See lanes_inl.h for who includes this.

#ifndef KERNELS_CPU_TABLE_INL_H_
#define KERNELS_CPU_TABLE_INL_H_

#include <cstddef>
#include <cstdint>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "kernels/cpu/cast_inl.h"
#include "kernels/cpu/combine_inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/narrow_inl.h"
#include "kernels/cpu/reduce_many_inl.h"
#include "kernels/cpu/scale_inl.h"

namespace lockstep {
namespace kernels {
namespace {

class TableBuilder {
 public:
  constexpr KernelTable Build() const { return table_; }

  template <typename Kernel>
  constexpr void Operation(DType dtype, ReduceOp op) {
    table_.combine[static_cast<int>(dtype)][static_cast<int>(op)] = &Combine<Kernel>;
    table_.reduce_many[static_cast<int>(dtype)][static_cast<int>(op)] = &ReduceMany<Kernel>;
  }
  // A sum, and the scaling of what it sums.
  template <typename Sum, typename Scaling>
  constexpr void ScaledSum(DType dtype) {
    table_.scaled_sum[static_cast<int>(dtype)] = &SumScaled<Sum, Scaling>;
  }
  constexpr ScaleFunction& Scale(DType dtype) { return table_.scale[static_cast<int>(dtype)]; }
  constexpr ScaleFunction& Cast(DType to, DType from) {
    return table_.cast[static_cast<int>(to)][static_cast<int>(from)];
  }

  constexpr void Bool() {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kOr}) Operation<BoolKernel<Or>>(DType::kBool, op);
    for (ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kAnd}) Operation<BoolKernel<And>>(DType::kBool, op);
    Operation<BoolKernel<Xor>>(DType::kBool, ReduceOp::kXor);
  }

  // What does not depend on the sign uses the unsigned type, so that both share the code.
  template <typename T, typename Unsigned>
  constexpr void Integer(DType dtype) {
    Operation<IntegerKernel<Unsigned, Add>>(dtype, ReduceOp::kSum);
    Operation<IntegerKernel<Unsigned, Multiply>>(dtype, ReduceOp::kProd);
    Operation<IntegerKernel<T, Lesser>>(dtype, ReduceOp::kMin);
    Operation<IntegerKernel<T, Greater>>(dtype, ReduceOp::kMax);
    Operation<IntegerKernel<Unsigned, And>>(dtype, ReduceOp::kAnd);
    Operation<IntegerKernel<Unsigned, Or>>(dtype, ReduceOp::kOr);
    Operation<IntegerKernel<Unsigned, Xor>>(dtype, ReduceOp::kXor);
    if constexpr (sizeof(T) < 8) {
      table_.divide[static_cast<int>(dtype)] = &DivideSmall<T>;
    } else {
      table_.divide[static_cast<int>(dtype)] = &DivideWide<T>;
    }
  }

  template <typename Format>
  constexpr void Narrow(DType dtype) {
    Operation<NarrowKernel<Format, Add>>(dtype, ReduceOp::kSum);
    Operation<NarrowKernel<Format, Multiply>>(dtype, ReduceOp::kProd);
    ScaledSum<NarrowKernel<Format, Add>, NarrowScaleKernel<Format>>(dtype);
    Scale(dtype) = &ScaleAll<NarrowScaleKernel<Format>>;
    Cast(dtype, DType::kF64) = &ScaleAll<CastDoubleToNarrowKernel<Format>>;
  }

  template <typename Min, typename Max>
  constexpr void Order(DType dtype) {
    Operation<Min>(dtype, ReduceOp::kMin);
    Operation<Max>(dtype, ReduceOp::kMax);
  }

  template <typename T>
  constexpr void Real(DType real, DType complex) {
    Operation<FloatKernel<T, Add>>(real, ReduceOp::kSum);
    Operation<FloatKernel<T, Multiply>>(real, ReduceOp::kProd);
    Operation<ComplexSumKernel<T>>(complex, ReduceOp::kSum);
    Operation<ComplexProductKernel<T>>(complex, ReduceOp::kProd);
    ScaledSum<FloatKernel<T, Add>, FloatScaleKernel<T>>(real);
    ScaledSum<ComplexSumKernel<T>, FloatScaleKernel<T>>(complex);
    Scale(real) = &ScaleAll<FloatScaleKernel<T>>;
    Scale(complex) = &ScaleComplex<T>;
  }

  template <typename From>
  constexpr void CastsOf(DType from) {
    Cast(DType::kF16, from) = &ScaleAll<CastKernel<Float16Format, From>>;
    Cast(DType::kBF16, from) = &ScaleAll<CastKernel<BFloat16Format, From>>;
    Cast(DType::kF32, from) = &ScaleAll<CastKernel<Float32Format, From>>;
    Cast(DType::kF64, from) = &ScaleAll<CastToDoubleKernel<From>>;
    Cast(DType::kF8E4M3, from) = &ScaleAll<CastKernel<Float8E4M3Format, From>>;
    Cast(DType::kF8E5M2, from) = &ScaleAll<CastKernel<Float8E5M2Format, From>>;
  }

 private:
  KernelTable table_ = {};
};

constexpr KernelTable MakeTable() {
  TableBuilder table;
  table.Bool();
  table.Integer<uint8_t, uint8_t>(DType::kU8);
  table.Integer<int8_t, uint8_t>(DType::kI8);
  table.Integer<int32_t, uint32_t>(DType::kI32);
  table.Integer<uint32_t, uint32_t>(DType::kU32);
  table.Integer<int64_t, uint64_t>(DType::kI64);
  table.Integer<uint64_t, uint64_t>(DType::kU64);
  table.Narrow<Float16Format>(DType::kF16);
  table.Narrow<BFloat16Format>(DType::kBF16);
  table.Narrow<Float8E4M3Format>(DType::kF8E4M3);
  table.Narrow<Float8E5M2Format>(DType::kF8E5M2);
  table.Order<Float16Order<Lesser>, Float16Order<Greater>>(DType::kF16);
  table.Order<BFloat16Order<Lesser>, BFloat16Order<Greater>>(DType::kBF16);
  table.Order<Float32Order<Lesser>, Float32Order<Greater>>(DType::kF32);
  table.Order<Float64Order<Lesser>, Float64Order<Greater>>(DType::kF64);
  table.Order<Float8E4M3Order<Lesser>, Float8E4M3Order<Greater>>(DType::kF8E4M3);
  table.Order<Float8E5M2Order<Lesser>, Float8E5M2Order<Greater>>(DType::kF8E5M2);
  table.Real<float>(DType::kF32, DType::kComplex64);
  table.Real<double>(DType::kF64, DType::kComplex128);
  table.CastsOf<Float16Format>(DType::kF16);
  table.CastsOf<BFloat16Format>(DType::kBF16);
  table.CastsOf<Float32Format>(DType::kF32);
  table.CastsOf<Float8E4M3Format>(DType::kF8E4M3);
  table.CastsOf<Float8E5M2Format>(DType::kF8E5M2);
  table.Cast(DType::kF32, DType::kF64) = &ScaleAll<CastDoubleToFloatKernel>;
  // To its own dtype, a cast is a scaling.
  for (DType dtype : kAllDTypes) table.Cast(dtype, dtype) = table.Scale(dtype);
  return table.Build();
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_TABLE_INL_H_
