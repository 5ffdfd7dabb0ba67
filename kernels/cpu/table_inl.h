// The table of all kernels, from the templates of the other *_inl.h. See lanes_inl.h for who includes this.

#ifndef KERNELS_CPU_TABLE_INL_H_
#define KERNELS_CPU_TABLE_INL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "kernels/cpu/blocks_inl.h"
#include "kernels/cpu/cast_inl.h"
#include "kernels/cpu/combine_inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/narrow_inl.h"

namespace lockstep::kernels {
namespace {

class TableBuilder {
 public:
  constexpr KernelTable Build() const { return table_; }

  constexpr void Blocks() {
    table_.gather = &Gather;
    table_.scatter = &Scatter;
  }

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
  constexpr ScaleFunction& Cast(DType to, DType from) {
    return table_.cast[static_cast<int>(to)][static_cast<int>(from)];
  }

  constexpr void Bool(DType dtype) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kOr}) Operation<BoolKernel<Or>>(dtype, op);
    for (ReduceOp op : {ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kAnd}) Operation<BoolKernel<And>>(dtype, op);
    Operation<BoolKernel<Xor>>(dtype, ReduceOp::kXor);
  }

  // What does not depend on the sign uses the unsigned type, so that both share the code.
  template <typename T>
  constexpr void Integer(DType dtype) {
    using Unsigned = std::make_unsigned_t<T>;
    Operation<IntegerKernel<Unsigned, Add>>(dtype, ReduceOp::kSum);
    Operation<IntegerKernel<Unsigned, Multiply>>(dtype, ReduceOp::kProd);
    Operation<IntegerKernel<T, Lesser>>(dtype, ReduceOp::kMin);
    Operation<IntegerKernel<T, Greater>>(dtype, ReduceOp::kMax);
    Operation<IntegerKernel<Unsigned, And>>(dtype, ReduceOp::kAnd);
    Operation<IntegerKernel<Unsigned, Or>>(dtype, ReduceOp::kOr);
    Operation<IntegerKernel<Unsigned, Xor>>(dtype, ReduceOp::kXor);
    table_.divide[static_cast<int>(dtype)] = &Divide<T, std::conditional_t<sizeof(T) < 8, double, T>>;
  }

  template <DType kDType>
  constexpr void Narrow() {
    using Format = FormatOfDType<kDType>;
    Operation<NarrowKernel<Format, Add>>(kDType, ReduceOp::kSum);
    Operation<NarrowKernel<Format, Multiply>>(kDType, ReduceOp::kProd);
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
    if (kDType == DType::kF16) {
      table_.combine[static_cast<int>(kDType)][static_cast<int>(ReduceOp::kSum)] = &Combine<HalfKernel<AddHalves>>;
      table_.combine[static_cast<int>(kDType)][static_cast<int>(ReduceOp::kProd)] =
          &Combine<HalfKernel<MultiplyHalves>>;
    }
#endif
    ScaledSum<NarrowKernel<Format, Add>, NarrowScaleKernel<Format>>(kDType);
    Cast(kDType, kDType) = &ScaleAll<NarrowScaleKernel<Format>>;
    OrderAndCasts<kDType>();
  }

  template <DType kDType, typename T>
  constexpr void Float() {
    Operation<FloatKernel<T, Add>>(kDType, ReduceOp::kSum);
    Operation<FloatKernel<T, Multiply>>(kDType, ReduceOp::kProd);
    ScaledSum<FloatKernel<T, Add>, FloatScaleKernel<T>>(kDType);
    Cast(kDType, kDType) = &ScaleAll<FloatScaleKernel<T>>;
    OrderAndCasts<kDType>();
  }

  template <typename T>
  constexpr void Complex(DType dtype) {
    Operation<ComplexSumKernel<T>>(dtype, ReduceOp::kSum);
    Operation<ComplexProductKernel<T>>(dtype, ReduceOp::kProd);
    ScaledSum<ComplexSumKernel<T>, FloatScaleKernel<T>>(dtype);
    Cast(dtype, dtype) = &ScaleComplex<T>;
  }

 private:
  template <DType kDType>
  constexpr void OrderAndCasts() {
    Operation<OrderKernel<kDType, Lesser>>(kDType, ReduceOp::kMin);
    Operation<OrderKernel<kDType, Greater>>(kDType, ReduceOp::kMax);
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) CastOf<DType::k##id, kDType>();
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
  }

  template <DType kTo, DType kFrom>
  constexpr void CastOf() {
    if constexpr (kTo == kFrom) {
      // A scaling, which is there already.
    } else if constexpr (kTo == DType::kF64) {
      Cast(kTo, kFrom) = &ScaleAll<CastToDoubleKernel<FormatOfDType<kFrom>>>;
    } else if constexpr (kFrom != DType::kF64) {
      Cast(kTo, kFrom) = &ScaleAll<CastKernel<FormatOfDType<kTo>, FormatOfDType<kFrom>>>;
    } else if constexpr (kTo == DType::kF32) {
      Cast(kTo, kFrom) = &ScaleAll<CastDoubleToFloatKernel>;
    } else {
      Cast(kTo, kFrom) = &ScaleAll<CastDoubleToNarrowKernel<FormatOfDType<kTo>>>;
    }
  }

  KernelTable table_ = {};
};

constexpr KernelTable MakeTable() {
  TableBuilder table;
  table.Blocks();
#define LOCKSTEP_DTYPE_BOOL(number, id, name, Type) table.Bool(DType::k##id);
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) table.Integer<Type>(DType::k##id);
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) table.Narrow<DType::k##id>();
#define LOCKSTEP_DTYPE_FLOAT(number, id, name, Type, ...) table.Float<DType::k##id, Type>();
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) table.Complex<Part>(DType::k##id);
#include "base/types/dtypes.inc"
  return table.Build();
}

}  // namespace
}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_TABLE_INL_H_
