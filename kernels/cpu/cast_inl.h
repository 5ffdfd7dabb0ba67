// target[i] = To(source[i] * factor), rounded once after the product, and the integer division that an integer average ends with.
//
// The product is taken in float32, or in double if either side is double. See lanes_inl.h for who includes this and why
// everything is internal.

#ifndef KERNELS_CPU_CAST_INL_H_
#define KERNELS_CPU_CAST_INL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/narrow_inl.h"

namespace lockstep::kernels {
namespace {

// Between formats of narrow_inl.h, float32 included.
template <typename To, typename From>
struct CastKernel {
  using Factor = float;
  static constexpr size_t kSourceBytes = From::kBytes;
  static constexpr size_t kTargetBytes = To::kBytes;
  static constexpr size_t kStep = kFloatLanes;

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, float factor) {
    To::StoreOrdered(target, From::LoadOrdered(source) * factor);
  }
};

// One side is double: kFloatLanes of them are two vectors, each beside half a vector of floats.
inline constexpr size_t kHalfBytes = kVectorBytes / 2;
using HalfF32 = Vec<float, kHalfBytes>;
using HalfI32 = Vec<int32_t, kHalfBytes>;
using F64 = Vec<double>;
using I64 = Vec<int64_t>;
inline constexpr int64_t kMagnitude64 = 0x7FFFFFFFFFFFFFFF;

template <typename From>
struct CastToDoubleKernel {
  using Factor = double;
  static constexpr size_t kSourceBytes = From::kBytes;
  static constexpr size_t kTargetBytes = sizeof(double);
  static constexpr size_t kStep = kFloatLanes;

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, double factor) {
    uint8_t floats[kVectorBytes];
    Store(floats, From::LoadOrdered(source));
    for (size_t half = 0; half < 2; ++half) {
      const F64 value = __builtin_convertvector((Load<float, kHalfBytes>(floats + half * kHalfBytes)), F64);
      Store(target + half * kVectorBytes, Canonical<double>(value * factor));
    }
  }
};

struct CastDoubleToFloatKernel {
  using Factor = double;
  static constexpr size_t kSourceBytes = sizeof(double);
  static constexpr size_t kTargetBytes = sizeof(float);
  static constexpr size_t kStep = kFloatLanes / 2;

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, double factor) {
    // A canonical double becomes a canonical float.
    Store(target, __builtin_convertvector(Canonical<double>(Load<double>(source) * factor), HalfF32));
  }
};

// A double rounded to float by "round to odd": where the float is not exact, the neighbour with an odd last place. With
// at least two places more than a narrower format, rounding that to nearest even gives what rounding the double
// directly would have: a number on or near a tie of the narrow format keeps its side.
LOCKSTEP_LANES_INLINE HalfI32 RoundToOddBits(F64 value) {
#if defined(LOCKSTEP_NEON)
  return __builtin_bit_cast(HalfI32, vcvtx_f32_f64(value));
#else
  const HalfF32 nearest = __builtin_convertvector(value, HalfF32);
  const HalfI32 bits = As<int32_t>(nearest);
  // The signs are equal, so the larger code is the larger magnitude: 1 where the float is too large, -1 where too
  // small.
  const I64 exact = As<int64_t>(value) & kMagnitude64;
  const I64 rounded = As<int64_t>(__builtin_convertvector(nearest, F64)) & kMagnitude64;
  const I64 error = (rounded < exact) - (rounded > exact);
  // An even neighbour moves one place towards the double. Beyond the largest float that is infinity, which becomes the
  // largest float: still overflow for every narrower format. A NaN moves to another NaN.
  const HalfI32 is_even = (bits & 1) - 1;
  return bits - (__builtin_convertvector(error, HalfI32) & is_even);
#endif
}

// To a format narrower than float32.
template <typename To>
struct CastDoubleToNarrowKernel {
  using Factor = double;
  static constexpr size_t kSourceBytes = sizeof(double);
  static constexpr size_t kTargetBytes = To::kBytes;
  static constexpr size_t kStep = kFloatLanes;

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, double factor) {
    uint8_t floats[kVectorBytes];
    for (size_t half = 0; half < 2; ++half) {
      Store(floats + half * kHalfBytes, RoundToOddBits(Load<double>(source + half * kVectorBytes) * factor));
    }
    To::StoreOrdered(target, Load<float>(floats));
  }
};

// ---- To its own dtype: a scaling.

// float or double, the factor rounded to it.
template <typename T>
struct FloatScaleKernel {
  using Factor = T;
  static constexpr size_t kSourceBytes = sizeof(T);
  static constexpr size_t kTargetBytes = sizeof(T);
  static constexpr size_t kStep = kVectorBytes / sizeof(T);

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, T factor) {
    Store(target, Canonical<T>(Load<T>(source) * factor));
  }
};

// A format of narrow_inl.h, in float32.
template <typename Format>
struct NarrowScaleKernel {
  using Factor = float;
  static constexpr size_t kSourceBytes = Format::kBytes;
  static constexpr size_t kTargetBytes = Format::kBytes;
  static constexpr size_t kStep = Format::kStep;

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, float factor) {
    auto parts = Format::LoadParts(source);
    for (int p = 0; p < Format::kParts; ++p) parts.part[p] *= factor;
    Format::StoreParts(target, parts);
  }
};

// Applies a kernel to all of `count` elements, Kernel::kStep at a time. The last, partial step works on copies, so that
// nothing beyond the arrays is touched. A step reads its source before it writes, so the target may be the source.
template <typename Kernel>
void ScaleAll(void* target, const void* source, size_t count, double factor) {
  constexpr size_t kTargetBytes = Kernel::kStep * Kernel::kTargetBytes;
  constexpr size_t kSourceBytes = Kernel::kStep * Kernel::kSourceBytes;
  auto* t = static_cast<uint8_t*>(target);
  auto* s = static_cast<const uint8_t*>(source);
  const auto by = static_cast<typename Kernel::Factor>(factor);
  const size_t steps = count / Kernel::kStep;
  LOCKSTEP_LANES_UNROLL
  for (size_t i = 0; i < steps; ++i) Kernel::Step(t + i * kTargetBytes, s + i * kSourceBytes, by);
  if (const size_t rest = count % Kernel::kStep; rest != 0) {
    uint8_t in[kSourceBytes] = {};
    uint8_t out[kTargetBytes];
    __builtin_memcpy(in, s + steps * kSourceBytes, rest * Kernel::kSourceBytes);
    Kernel::Step(out, in, by);
    __builtin_memcpy(t + steps * kTargetBytes, out, rest * Kernel::kTargetBytes);
  }
}

// Both components of a complex number.
template <typename T>
void ScaleComplex(void* target, const void* source, size_t count, double factor) {
  ScaleAll<FloatScaleKernel<T>>(target, source, 2 * count, factor);
}

// Integers of up to 32 bits go through double: exact operands, and a quotient that is not whole is at least 1 / divisor
// away from the next whole number, farther than rounding reaches. A divisor beyond T's range leaves zeros, as it should.
// Wider ones go through themselves: the divisor is positive, so the one overflow of integer division cannot happen.
template <typename T, typename Through>
void Divide(void* data, size_t count, int64_t divisor) {
  auto* bytes = static_cast<uint8_t*>(data);
  const auto by = static_cast<Through>(divisor);
  for (size_t i = 0; i < count; ++i) {
    T value;
    __builtin_memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    value = static_cast<T>(static_cast<Through>(value) / by);
    __builtin_memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace
}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_CAST_INL_H_
