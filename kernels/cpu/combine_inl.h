// How elements become one, for every dtype and operation: of two arrays, or of many. Every
// operation is commutative to the bit, so that two ranks which combine the same values in opposite roles agree.
//
// A kernel offers
//   kElementBytes, kStep          one element in memory, and how many a step takes
//   Values                        what kStep elements are while they are being combined
//   Read, Apply, Write            from memory; two into one; to memory, rounded once
// Values may hold more than memory does: Write(Apply(Apply(a, b), c)) rounds narrow floats once.
// See lanes_inl.h for who includes this and why everything is internal.

#ifndef KERNELS_CPU_COMBINE_INL_H_
#define KERNELS_CPU_COMBINE_INL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/types/dtype.h"
#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/narrow_inl.h"

namespace lockstep::kernels {
namespace {

// target[i] = left[i] op right[i], Kernel::kStep elements at a time. The last, partial step works on
// copies, so that nothing beyond the arrays is touched. A step reads all its sources before it writes, so the target may
// be one of them.
template <typename Kernel>
void Combine(void* target, const void* left, const void* right, size_t count) {
  constexpr size_t kSize = Kernel::kElementBytes;
  constexpr size_t kStepBytes = Kernel::kStep * kSize;
  auto* t = static_cast<uint8_t*>(target);
  auto* l = static_cast<const uint8_t*>(left);
  auto* r = static_cast<const uint8_t*>(right);
  const size_t steps = count / Kernel::kStep;
  LOCKSTEP_LANES_UNROLL
  for (size_t i = 0; i < steps; ++i) {
    const size_t at = i * kStepBytes;
    Kernel::Write(t + at, Kernel::Apply(Kernel::Read(l + at), Kernel::Read(r + at)));
  }
  if (const size_t rest = count % Kernel::kStep * kSize; rest != 0) {
    const size_t done = steps * kStepBytes;
    uint8_t a[kStepBytes] = {};
    uint8_t b[kStepBytes] = {};
    __builtin_memcpy(a, l + done, rest);
    __builtin_memcpy(b, r + done, rest);
    Kernel::Write(a, Kernel::Apply(Kernel::Read(a), Kernel::Read(b)));
    __builtin_memcpy(t + done, a, rest);
  }
}

// Operations, on lanes of any type that has them.
#define LOCKSTEP_LANES_OPERATION(Name, result)       \
  struct Name {                                      \
    template <typename V>                            \
    static LOCKSTEP_LANES_INLINE V Apply(V a, V b) { \
      return result;                                 \
    }                                                \
  }
LOCKSTEP_LANES_OPERATION(Add, (a + b));
LOCKSTEP_LANES_OPERATION(Multiply, (a * b));
LOCKSTEP_LANES_OPERATION(And, (a & b));
LOCKSTEP_LANES_OPERATION(Or, (a | b));
LOCKSTEP_LANES_OPERATION(Xor, (a ^ b));
LOCKSTEP_LANES_OPERATION(Lesser, (a < b ? a : b));
LOCKSTEP_LANES_OPERATION(Greater, (a > b ? a : b));
#undef LOCKSTEP_LANES_OPERATION

// Integers. Sums and products take the unsigned type of their size, which wraps around; min and max the real one.
template <typename T, typename Op>
struct IntegerKernel {
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kStep = kVectorBytes / sizeof(T);
  using Values = Vec<T>;

  static LOCKSTEP_LANES_INLINE Values Read(const uint8_t* source) { return Load<T>(source); }
  static LOCKSTEP_LANES_INLINE Values Apply(Values a, Values b) { return Op::Apply(a, b); }
  static LOCKSTEP_LANES_INLINE void Write(uint8_t* target, Values values) { Store(target, values); }
};

// One byte each; any value but 0 is true and the result is 0 or 1.
template <typename Op>
struct BoolKernel {
  static constexpr size_t kElementBytes = 1;
  static constexpr size_t kStep = kVectorBytes;
  using Values = Vec<int8_t>;  // all ones where true

  static LOCKSTEP_LANES_INLINE Values Read(const uint8_t* source) { return As<int8_t>(Load<uint8_t>(source) != 0); }
  static LOCKSTEP_LANES_INLINE Values Apply(Values a, Values b) { return Op::Apply(a, b); }
  static LOCKSTEP_LANES_INLINE void Write(uint8_t* target, Values values) { Store(target, values & 1); }
};

// Sum or product of float or double. What was a NaN once stays one, so it is made canonical at the end.
template <typename T, typename Op>
struct FloatKernel {
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kStep = kVectorBytes / sizeof(T);
  using Values = Vec<T>;

  static LOCKSTEP_LANES_INLINE Values Read(const uint8_t* source) { return Load<T>(source); }
  static LOCKSTEP_LANES_INLINE Values Apply(Values a, Values b) { return Op::Apply(a, b); }
  static LOCKSTEP_LANES_INLINE void Write(uint8_t* target, Values values) { Store(target, Canonical<T>(values)); }
};

// Two reals an element.
template <typename T>
struct ComplexSumKernel : FloatKernel<T, Add> {
  static constexpr size_t kElementBytes = 2 * sizeof(T);
  static constexpr size_t kStep = kVectorBytes / kElementBytes;
};

// Sum or product of a format of narrow_inl.h: in float32, rounded once.
template <typename Format, typename Op>
struct NarrowKernel {
  static constexpr size_t kElementBytes = Format::kBytes;
  static constexpr size_t kStep = Format::kStep;
  using Values = Parts<Format::kParts>;

  static LOCKSTEP_LANES_INLINE Values Read(const uint8_t* source) { return Format::LoadParts(source); }
  static LOCKSTEP_LANES_INLINE Values Apply(Values a, const Values& b) {
    for (int p = 0; p < Format::kParts; ++p) a.part[p] = Op::Apply(a.part[p], b.part[p]);
    return a;
  }
  static LOCKSTEP_LANES_INLINE void Write(uint8_t* target, const Values& values) { Format::StoreParts(target, values); }
};

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
// Sum or product of two f16 by the processor's own arithmetic, which rounds the exact result once. NarrowKernel gives the same bits.
// It rounds to float32 first, which does no harm: the 24 bits of float32 are at least two more than twice the 11 bits of f16. For more
// than two sources NarrowKernel rounds once at the end, so this arithmetic is not used for them.
struct AddHalves {
  static LOCKSTEP_LANES_INLINE float16x8_t Apply(float16x8_t a, float16x8_t b) { return vaddq_f16(a, b); }
};
struct MultiplyHalves {
  static LOCKSTEP_LANES_INLINE float16x8_t Apply(float16x8_t a, float16x8_t b) { return vmulq_f16(a, b); }
};

template <typename Op>
struct HalfKernel : Op {
  static constexpr size_t kElementBytes = sizeof(uint16_t);
  static constexpr size_t kStep = kVectorBytes / kElementBytes;
  using Values = float16x8_t;

  static LOCKSTEP_LANES_INLINE Values Read(const uint8_t* source) {
    return __builtin_bit_cast(Values, Load<uint16_t>(source));
  }
  static LOCKSTEP_LANES_INLINE void Write(uint8_t* target, Values values) {
    const uint16x8_t nan = vdupq_n_u16(static_cast<uint16_t>(FormatOf(DType::kF16).nan()));
    Store(target, vbslq_u16(vceqq_f16(values, values), vreinterpretq_u16_f16(values), nan));
  }
};
#endif

// IEEE 754-2019 minimum and maximum for every float format, on its bits: with the magnitude of negative numbers
// inverted, codes order as signed integers, -0 right below +0. No conversion, and none of minps's dependence on the
// order of its operands. `T` is the signed integer of the format's size, kInfinity its largest code that is no NaN.
template <typename T, T kInfinity, T kNan, typename Op>
struct FloatOrderKernel {
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kStep = kVectorBytes / sizeof(T);
  static constexpr T kMagnitude = static_cast<T>(~(T{1} << (8 * sizeof(T) - 1)));
  struct Values {
    Vec<T> key;
    Vec<T> has_nan;  // all ones where true
  };

  static LOCKSTEP_LANES_INLINE Values Read(const uint8_t* source) {
    const Vec<T> code = Load<T>(source);
    return {Key(code), As<T>((code & kMagnitude) > kInfinity)};
  }
  static LOCKSTEP_LANES_INLINE Values Apply(const Values& a, const Values& b) {
    return {Op::Apply(a.key, b.key), a.has_nan | b.has_nan};
  }
  static LOCKSTEP_LANES_INLINE void Write(uint8_t* target, const Values& values) {
    Store(target, values.has_nan ? Splat<T>(kNan) : Key(values.key));
  }

 private:
  // Its own inverse: the sign stays.
  static LOCKSTEP_LANES_INLINE Vec<T> Key(Vec<T> code) { return code ^ ((code < 0) & kMagnitude); }
};

template <DType kDType>
using SignedCode =
    std::conditional_t<FormatOf(kDType).bits() == 8, int8_t,
                       std::conditional_t<FormatOf(kDType).bits() == 16, int16_t,
                                          std::conditional_t<FormatOf(kDType).bits() == 32, int32_t, int64_t>>>;
template <DType kDType, typename Op>
using OrderKernel = FloatOrderKernel<SignedCode<kDType>,
                                     static_cast<SignedCode<kDType>>(FormatOf(kDType).overflow() -
                                                                     (FormatOf(kDType).has_infinity ? 0 : 1)),
                                     static_cast<SignedCode<kDType>>(FormatOf(kDType).nan()), Op>;

// (a + bi)(c + di) = (ac - bd) + (ad + bc)i, each product and sum rounded. Spelled in lanes because GCC 12 fuses its
// own vectorisation of the scalar formula into vfmaddsub, -ffp-contract=off or not: adding the negated product gives
// the difference's bits and is not recognised.
template <typename T>
struct ComplexProductKernel : ComplexSumKernel<T> {
  static LOCKSTEP_LANES_INLINE Vec<T> Apply(Vec<T> a, Vec<T> b) {
    return ApplyLanes(a, b, std::make_integer_sequence<int, kVectorBytes / sizeof(T)>());
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

  template <int... kLane>
  static LOCKSTEP_LANES_INLINE Vec<T> ApplyLanes(Vec<T> left, Vec<T> right, std::integer_sequence<int, kLane...>) {
    const Vec<T> a = __builtin_shufflevector(left, left, (kLane & ~1)...);
    const Vec<T> b = __builtin_shufflevector(left, left, (kLane | 1)...);
    const Vec<T> dc = __builtin_shufflevector(right, right, (kLane ^ 1)...);
    const Vec<Bits> sign_of_real = {(kLane % 2 == 0 ? Bits{1} << (8 * sizeof(T) - 1) : Bits{0})...};
    const Vec<T> cross = As<T>(As<Bits>(b * dc) ^ sign_of_real);
    return a * right + cross;
  }
};

// ---- Of many arrays.

// ReduceMany: targets[t][i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., written to every target in the
// same pass. SumScaled: the same of sources that are scaled by a kernel of cast_inl.h as they are read.
//
// All sources are walked side by side, a few vectors of each at a time, so the sum never leaves the registers. Folding
// block by block instead, with the sum in first-level cache, is no faster before there are more sources than the
// processor's prefetchers follow (16 and up, by 1.2 at most), and slower below.

// How a step of a source becomes values: as it is,
template <typename Kernel>
struct PlainReader {
  LOCKSTEP_LANES_INLINE typename Kernel::Values operator()(const uint8_t* source) const { return Kernel::Read(source); }
};

// or as a scaling would have left it in memory, which it does not reach: the compilers keep `scaled` in registers.
template <typename Kernel, typename Scaling>
struct ScalingReader {
  static constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  static_assert(kStepBytes == Scaling::kStep * Scaling::kSourceBytes, "one step of the one is one of the other");

  LOCKSTEP_LANES_INLINE typename Kernel::Values operator()(const uint8_t* source) const {
    uint8_t scaled[kStepBytes];
    Scaling::Step(scaled, source, factor);
    return Kernel::Read(scaled);
  }

  typename Scaling::Factor factor;
};

// Reads kSteps steps of every source, then writes as many of every target. Several steps at once, because one alone
// would wait for each addition before the next, and pay for the loops over the pointers every time.
template <typename Kernel, int kSteps, typename Reader>
LOCKSTEP_LANES_INLINE void ReduceSteps(uint8_t* const* targets, size_t target_count, const uint8_t* const* sources,
                                       size_t source_count, size_t offset, const Reader& read) {
  constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  typename Kernel::Values values[kSteps];
  LOCKSTEP_LANES_UNROLL
  for (int i = 0; i < kSteps; ++i) values[i] = read(sources[0] + offset + i * kStepBytes);
  for (size_t s = 1; s < source_count; ++s) {
    const uint8_t* const source = sources[s] + offset;
    LOCKSTEP_LANES_UNROLL
    for (int i = 0; i < kSteps; ++i) values[i] = Kernel::Apply(values[i], read(source + i * kStepBytes));
  }
  for (size_t t = 0; t < target_count; ++t) {
    uint8_t* const target = targets[t] + offset;
    LOCKSTEP_LANES_UNROLL
    for (int i = 0; i < kSteps; ++i) Kernel::Write(target + i * kStepBytes, values[i]);
  }
}

// As memcpy, without the call where there are so few bytes as in a loss or two.
LOCKSTEP_LANES_INLINE void CopyRest(uint8_t* target, const uint8_t* source, size_t bytes) {
  switch (bytes) {
    case 4:
      __builtin_memcpy(target, source, 4);
      break;
    case 8:
      __builtin_memcpy(target, source, 8);
      break;
    default:
      __builtin_memcpy(target, source, bytes);
  }
}

// The last, partial step: on copies, so that nothing beyond the arrays is touched.
template <typename Kernel, typename Reader>
LOCKSTEP_LANES_INLINE void ReduceRest(uint8_t* const* targets, size_t target_count, const uint8_t* const* sources,
                                      size_t source_count, size_t offset, size_t rest, const Reader& read) {
  uint8_t piece[Kernel::kStep * Kernel::kElementBytes] = {};
  CopyRest(piece, sources[0] + offset, rest);
  auto values = read(piece);
  for (size_t s = 1; s < source_count; ++s) {
    CopyRest(piece, sources[s] + offset, rest);
    values = Kernel::Apply(values, read(piece));
  }
  Kernel::Write(piece, values);
  for (size_t t = 0; t < target_count; ++t) CopyRest(targets[t] + offset, piece, rest);
}

template <typename Kernel, typename Reader>
LOCKSTEP_LANES_INLINE void ReduceAll(void* const* targets, size_t target_count, const void* const* sources,
                                     size_t source_count, size_t count, const Reader& read) {
  constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  // A narrow format's step is several vectors already.
  constexpr int kSteps = sizeof(typename Kernel::Values) > 2 * kVectorBytes ? 1 : 4;
  auto* const* t = reinterpret_cast<uint8_t* const*>(targets);
  auto* const* s = reinterpret_cast<const uint8_t* const*>(sources);
  const size_t bytes = count * Kernel::kElementBytes;
  size_t offset = 0;
  for (; bytes - offset >= kSteps * kStepBytes; offset += kSteps * kStepBytes) {
    ReduceSteps<Kernel, kSteps>(t, target_count, s, source_count, offset, read);
  }
  for (; bytes - offset >= kStepBytes; offset += kStepBytes) {
    ReduceSteps<Kernel, 1>(t, target_count, s, source_count, offset, read);
  }
  if (offset < bytes) ReduceRest<Kernel>(t, target_count, s, source_count, offset, bytes - offset, read);
}

template <typename Kernel>
void ReduceMany(void* const* targets, size_t target_count, const void* const* sources, size_t source_count,
                size_t count) {
  if (source_count == 1) {
    // No arithmetic: the bits as they are.
    const size_t bytes = count * Kernel::kElementBytes;
    for (size_t i = 0; i < target_count; ++i) {
      if (bytes > 0 && targets[i] != sources[0]) __builtin_memcpy(targets[i], sources[0], bytes);
    }
    return;
  }
  ReduceAll<Kernel>(targets, target_count, sources, source_count, count, PlainReader<Kernel>());
}

template <typename Kernel, typename Scaling>
void SumScaled(void* const* targets, size_t target_count, const void* const* sources, size_t source_count, size_t count,
               double factor) {
  const ScalingReader<Kernel, Scaling> read = {static_cast<typename Scaling::Factor>(factor)};
  ReduceAll<Kernel>(targets, target_count, sources, source_count, count, read);
}

}  // namespace
}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_COMBINE_INL_H_
