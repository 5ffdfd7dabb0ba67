// Float formats element by element, and conversion between them with a factor: the arithmetic of kernels/cpu/cast.h,
// to the bit. Compiled without contraction (nvcc: -fmad=false). See execution_inl.h for who includes this.
//
// A format offers
//   Bits, Wide        an element in memory; the type it is computed in (float, double)
//   Decode, Encode    exact; rounded once to nearest even, with the canonical NaN

#ifndef KERNELS_CUDA_ELEMENTS_INL_H_
#define KERNELS_CUDA_ELEMENTS_INL_H_

#include <cstdint>
#include <type_traits>

#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "base/types/float16.h"
#include "base/types/float8.h"
#include "kernels/cuda/execution_inl.h"

namespace lockstep::kernels::cuda {
namespace {

#define LOCKSTEP_DTYPE_NARROW(number, id, name, StorageType, ...) \
  template <>                                                     \
  struct StorageOf<DType::k##id> {                                \
    using Type = StorageType;                                     \
  };
template <DType kDType>
struct StorageOf;
#include "base/types/dtypes.inc"

// The conversions of base/, which are integer arithmetic and mean the same everywhere.
template <DType kOfDType>
struct Narrow {
  static constexpr DType kDType = kOfDType;
  using Storage = typename StorageOf<kOfDType>::Type;
  using Bits = std::conditional_t<FormatOf(kOfDType).bits() == 8, uint8_t, uint16_t>;
  using Wide = float;
  static LOCKSTEP_BODY Wide Decode(Bits bits) { return static_cast<float>(Storage::FromBits(bits)); }
  static LOCKSTEP_BODY Bits Encode(Wide value) { return Storage(value).bits(); }
};

// The format of a float dtype.
template <DType kDType>
struct Element : Narrow<kDType> {};

template <>
struct Element<DType::kF32> {
  static constexpr DType kDType = DType::kF32;
  using Bits = uint32_t;
  using Wide = float;
  static LOCKSTEP_BODY Wide Decode(Bits bits) { return __builtin_bit_cast(float, bits); }
  static LOCKSTEP_BODY Bits Encode(Wide value) {
    return value != value ? 0x7FC00000 : __builtin_bit_cast(uint32_t, value);
  }
};

template <>
struct Element<DType::kF64> {
  static constexpr DType kDType = DType::kF64;
  using Bits = uint64_t;
  using Wide = double;
  static constexpr Bits kMagnitude = 0x7FFFFFFFFFFFFFFF;
  static LOCKSTEP_BODY Wide Decode(Bits bits) { return __builtin_bit_cast(double, bits); }
  static LOCKSTEP_BODY Bits Encode(Wide value) {
    return value != value ? 0x7FF8000000000000 : __builtin_bit_cast(uint64_t, value);
  }
};

// The hardware's conversions differ in nothing but their NaN. (A NaN that is decoded is made canonical where it is
// encoded.)
template <>
struct Element<DType::kF16> : Narrow<DType::kF16> {
#if defined(__CUDA_ARCH__)
  static LOCKSTEP_BODY Wide Decode(Bits bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static LOCKSTEP_BODY Bits Encode(Wide value) {
    Bits bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return value != value ? 0x7E00 : bits;
  }
#endif
};

// From sm_89 on there are instructions for these, too. They saturate, so what rounds beyond the largest finite number
// is put right.
template <>
struct Element<DType::kF8E4M3> : Narrow<DType::kF8E4M3> {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static LOCKSTEP_BODY Wide Decode(Bits bits) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bits)));
    return Element<DType::kF16>::Decode(static_cast<uint16_t>(halves));
  }
  static LOCKSTEP_BODY Bits Encode(Wide value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    // 464 is half way between 448 and 480: a tie, which goes to the even 448. NaN fails the comparison.
    return fabsf(value) <= 464.0f ? static_cast<Bits>(pair) : Bits{0x7F};
  }
#endif
};

template <>
struct Element<DType::kF8E5M2> : Narrow<DType::kF8E5M2> {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  static LOCKSTEP_BODY Wide Decode(Bits bits) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bits)));
    return Element<DType::kF16>::Decode(static_cast<uint16_t>(halves));
  }
  static LOCKSTEP_BODY Bits Encode(Wide value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    // 61,440 is half way between 57,344 and 65,536, whose mantissa is even: infinity.
    if (fabsf(value) < 61440.0f) return static_cast<Bits>(pair);
    return value != value ? Bits{0x7E} : static_cast<Bits>(__builtin_bit_cast(uint32_t, value) >> 31 << 7 | 0x7C);
  }
#endif
};

// F16, BF16, F32 and so on.
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) using id = Element<DType::k##id>;
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"

// A double rounded to float by "round to odd", so that rounding the result to a narrower format to nearest even gives
// what rounding the double directly would have: see kernels/cpu/cast_inl.h.
LOCKSTEP_BODY float RoundToOdd(double value) {
  const auto nearest = static_cast<float>(value);
  auto bits = __builtin_bit_cast(uint32_t, nearest);
  const uint64_t exact = __builtin_bit_cast(uint64_t, value) & F64::kMagnitude;
  const uint64_t rounded = __builtin_bit_cast(uint64_t, static_cast<double>(nearest)) & F64::kMagnitude;
  // An even neighbour moves one place towards the double, in magnitude; beyond the largest float that leaves the
  // largest.
  if ((bits & 1) == 0 && rounded != exact) bits += rounded < exact ? 1 : -1;
  return __builtin_bit_cast(float, bits);
}

template <typename To, typename From>
struct Conversion {
  static constexpr bool kInDouble = std::is_same<To, F64>::value || std::is_same<From, F64>::value;
  using Factor = std::conditional_t<kInDouble, double, float>;

  static LOCKSTEP_BODY typename To::Bits Apply(typename From::Bits bits, Factor factor) {
    const Factor product = static_cast<Factor>(From::Decode(bits)) * factor;
    if constexpr (!kInDouble || std::is_same<To, F64>::value) {
      return To::Encode(product);
    } else if constexpr (std::is_same<To, F32>::value) {
      return To::Encode(static_cast<float>(product));
    } else {
      return To::Encode(RoundToOdd(product));
    }
  }
};

}  // namespace
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_ELEMENTS_INL_H_
