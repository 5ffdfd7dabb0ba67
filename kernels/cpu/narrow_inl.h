// f16, bf16 and the 8-bit floats as lanes of float32: the vector form of base/types/float16.h, base/types/bfloat16.h and
// base/types/float8.h, bit for bit (a test compares them for every code).
//
// A format offers
//   kBytes                        one element in memory
//   kParts, kStep                 float vectors, and elements, in one full vector of it
//   LoadParts, StoreParts         kStep elements in an order of the format's own, for element-wise work: no shuffles
//   LoadOrdered, StoreOrdered     kFloatLanes elements in memory order, for conversions between formats
// Loading is exact. Storing rounds once, to nearest even, and makes every NaN the format's canonical one; what is
// stored is a result of arithmetic, so its NaNs are quiet.
// See lanes_inl.h for who includes this and why everything is internal.

#ifndef KERNELS_CPU_NARROW_INL_H_
#define KERNELS_CPU_NARROW_INL_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types/dtype.h"
#include "kernels/cpu/lanes_inl.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__AVX2__)
#error "the AVX variants are compiled with -mf16c, which neither -mavx2 nor -mavx512f implies"
#elif defined(LOCKSTEP_NEON)
#include <arm_neon.h>
#endif

namespace lockstep::kernels {
namespace {

template <int kCount>
struct Parts {
  F32 part[kCount];
};

// Loads and stores for a codec that converts between the code in a 32-bit lane and its float:
//   using Code; static F32 Decode(U32 code); static U32 Encode(F32 value);
template <typename Codec>
struct CodedFormat {
  using Code = typename Codec::Code;
  static constexpr size_t kBytes = sizeof(Code);
  static constexpr int kParts = sizeof(uint32_t) / sizeof(Code);
  static constexpr size_t kStep = kVectorBytes / sizeof(Code);
  static constexpr int kCodeBits = 8 * sizeof(Code);

  // Part p holds every kParts-th element, beginning with the p-th: shifts take apart what shifts put together.
  static LOCKSTEP_LANES_INLINE Parts<kParts> LoadParts(const uint8_t* source) {
    const U32 codes = Load<uint32_t>(source);
    Parts<kParts> parts;
    for (int p = 0; p < kParts; ++p) parts.part[p] = Codec::Decode(codes >> (p * kCodeBits) & uint32_t{Code(~Code{0})});
    return parts;
  }

  static LOCKSTEP_LANES_INLINE void StoreParts(uint8_t* target, const Parts<kParts>& parts) {
    U32 codes = Codec::Encode(parts.part[0]);
    for (int p = 1; p < kParts; ++p) codes |= Codec::Encode(parts.part[p]) << (p * kCodeBits);
    Store(target, codes);
  }

  static LOCKSTEP_LANES_INLINE F32 LoadOrdered(const uint8_t* source) {
    return Codec::Decode(__builtin_convertvector((Load<Code, kFloatLanes * kBytes>(source)), U32));
  }

  static LOCKSTEP_LANES_INLINE void StoreOrdered(uint8_t* target, F32 value) {
    using Codes = Vec<Code, kFloatLanes * kBytes>;
    Store(target, __builtin_convertvector(Codec::Encode(value), Codes));
  }
};

struct BFloat16Codec {
  using Code = uint16_t;

  static LOCKSTEP_LANES_INLINE F32 Decode(U32 code) { return As<float>(code << 16); }

  // The canonical NaN survives the rounding.
  static LOCKSTEP_LANES_INLINE U32 Encode(F32 value) {
    const U32 bits = As<uint32_t>(Canonical<float>(value));
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  }
};

// Formats with fewer exponent bits than float32. kOverflow is the first code after the largest finite one and kNan the
// canonical NaN, as in base/types/narrow_float.h.
template <DType kDType>
struct NarrowCodec {
  static constexpr FloatFormat kFormat = FormatOf(kDType);
  using Code = std::conditional_t<kFormat.bits() == 8, uint8_t, uint16_t>;
  static constexpr int kExponentBits = kFormat.exponent_bits;
  static constexpr int kMantissaBits = kFormat.mantissa_bits;
  static constexpr uint32_t kOverflow = kFormat.overflow();
  static constexpr uint32_t kNan = kFormat.nan();
  static constexpr int kBias = kFormat.bias();
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr uint32_t kSign = 1u << (kExponentBits + kMantissaBits);
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr int32_t kMinNormal = (128 - kBias) << 23;
  // The exponent of the smallest subnormal: 1 - bias - mantissa bits.
  static constexpr int kUnit = 1 - kBias - kMantissaBits;

  static LOCKSTEP_LANES_INLINE F32 Decode(U32 code) {
    const U32 magnitude = code & (kSign - 1);
    const U32 normal = (magnitude << kShift) + kRebias;
    // A subnormal counts units, so that no float32 subnormal (slow, or flushed to zero) is ever made.
    const F32 units = __builtin_convertvector(As<int32_t>(magnitude), F32);
    const U32 subnormal = As<uint32_t>(units * kUnitValue);
    // Only the all-ones exponent is special; where the format has no infinity, its one code is NaN.
    const U32 special = normal | (kOverflow == kNan ? 0x7FC00000u : 0x7F800000u);
    U32 bits = As<int32_t>(magnitude) < (1 << kMantissaBits) ? subnormal : normal;
    bits = As<int32_t>(magnitude) >= static_cast<int32_t>(kOverflow) ? special : bits;
    return As<float>(bits | (code & kSign) << kSignShift);
  }

  static LOCKSTEP_LANES_INLINE U32 Encode(F32 value) {
    const U32 bits = As<uint32_t>(value);
    const U32 magnitude = bits & 0x7FFFFFFFu;
    const U32 sign = bits >> kSignShift & kSign;
    // A carry out of the mantissa moves on to the next exponent, as it should.
    const U32 normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1)) >> kShift;
    // Adding a number whose last place is one unit leaves the count of units in the mantissa, rounded by the adder.
    const U32 subnormal = As<uint32_t>(As<float>(magnitude) + kUnitInLastPlace) - kUnitInLastPlaceBits;
    U32 code = As<int32_t>(magnitude) < kMinNormal ? subnormal : normal;
    // Every larger number has a larger code, so this also catches what lies far beyond the format.
    const auto overflows = As<int32_t>(code) >= static_cast<int32_t>(kOverflow);
    code = overflows ? Splat<uint32_t>(kOverflow) : code;
    const auto is_nan = As<int32_t>(magnitude) > 0x7F800000;
    if (kOverflow == kNan) return (overflows | is_nan) ? Splat<uint32_t>(kNan) : code | sign;
    return is_nan ? Splat<uint32_t>(kNan) : code | sign;
  }

 private:
  static constexpr float PowerOfTwo(int exponent) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(127 + exponent) << 23);
  }

  static constexpr float kUnitValue = PowerOfTwo(kUnit);
  static constexpr float kUnitInLastPlace = PowerOfTwo(kUnit + 23);
  static constexpr uint32_t kUnitInLastPlaceBits = static_cast<uint32_t>(127 + kUnit + 23) << 23;
};

// The format of a float dtype: of narrower ones with fewer exponent bits than float32, but for those that follow.
template <DType kDType>
struct FormatOfDType : CodedFormat<NarrowCodec<kDType>> {};

// Loads and stores for a format of 16 bits that the processor converts, by a codec for kFloatLanes codes:
//   static F32 Decode(HalfCodes codes); static HalfCodes Encode(F32 canonical);
using HalfCodes = Vec<uint16_t, kFloatLanes * sizeof(uint16_t)>;

template <typename Codec>
struct ConvertedFormat {
  static constexpr size_t kBytes = sizeof(uint16_t);
  static constexpr int kParts = 2;
  static constexpr size_t kStep = 2 * kFloatLanes;

  static LOCKSTEP_LANES_INLINE F32 LoadOrdered(const uint8_t* source) {
    return Codec::Decode(Load<uint16_t, sizeof(HalfCodes)>(source));
  }

  // The instructions keep a NaN's payload.
  static LOCKSTEP_LANES_INLINE void StoreOrdered(uint8_t* target, F32 value) {
    Store(target, Codec::Encode(Canonical<float>(value)));
  }

  static LOCKSTEP_LANES_INLINE Parts<2> LoadParts(const uint8_t* source) {
    return {{LoadOrdered(source), LoadOrdered(source + sizeof(HalfCodes))}};
  }

  static LOCKSTEP_LANES_INLINE void StoreParts(uint8_t* target, const Parts<2>& parts) {
    StoreOrdered(target, parts.part[0]);
    StoreOrdered(target + sizeof(HalfCodes), parts.part[1]);
  }
};

// These ignore the flush-to-zero flags of both processors, FPCR.FZ16 included.
#if defined(__AVX512F__)
struct Float16Instructions {
  // GCC 12 warns of an uninitialised value in its own header for the intrinsics without a mask; the code is the same.
  static constexpr __mmask16 kAllLanes = 0xFFFF;

  static LOCKSTEP_LANES_INLINE F32 Decode(HalfCodes codes) {
    return _mm512_maskz_cvtph_ps(kAllLanes, As<long long>(codes));
  }
  static LOCKSTEP_LANES_INLINE HalfCodes Encode(F32 canonical) {
    return As<uint16_t>(_mm512_maskz_cvtps_ph(kAllLanes, canonical, _MM_FROUND_TO_NEAREST_INT));
  }
};
#elif defined(__F16C__)
struct Float16Instructions {
  static LOCKSTEP_LANES_INLINE F32 Decode(HalfCodes codes) { return _mm256_cvtph_ps(As<long long>(codes)); }
  static LOCKSTEP_LANES_INLINE HalfCodes Encode(F32 canonical) {
    return As<uint16_t>(_mm256_cvtps_ph(canonical, _MM_FROUND_TO_NEAREST_INT));
  }
};
#elif defined(LOCKSTEP_NEON)
struct Float16Instructions {
  static LOCKSTEP_LANES_INLINE F32 Decode(HalfCodes codes) {
    return vcvt_f32_f16(__builtin_bit_cast(float16x4_t, codes));
  }
  static LOCKSTEP_LANES_INLINE HalfCodes Encode(F32 canonical) {
    return __builtin_bit_cast(HalfCodes, vcvt_f16_f32(canonical));
  }
};
#endif

#if defined(__F16C__) || defined(LOCKSTEP_NEON)
template <>
struct FormatOfDType<DType::kF16> : ConvertedFormat<Float16Instructions> {};
#endif

#if defined(LOCKSTEP_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// BFCVTN rounds to nearest even and keeps subnormals, unlike AVX-512's vcvtneps2bf16.
struct BFloat16Instructions {
  static LOCKSTEP_LANES_INLINE F32 Decode(HalfCodes codes) {
    return As<float>(__builtin_convertvector(codes, U32) << 16);
  }
  static LOCKSTEP_LANES_INLINE HalfCodes Encode(F32 canonical) {
    return __builtin_bit_cast(HalfCodes, vcvt_bf16_f32(canonical));
  }
};

template <>
struct FormatOfDType<DType::kBF16> : ConvertedFormat<BFloat16Instructions> {};
#else
// A bf16 is the upper half of its float, so the odd elements of a vector are floats already, once the even ones beside
// them are masked off.
template <>
struct FormatOfDType<DType::kBF16> : CodedFormat<BFloat16Codec> {
  static LOCKSTEP_LANES_INLINE Parts<2> LoadParts(const uint8_t* source) {
    const U32 codes = Load<uint32_t>(source);
    return {{As<float>(codes << 16), As<float>(codes & 0xFFFF0000u)}};
  }

  // Rounds both parts at once, in 16-bit lanes. A quiet NaN shows in the upper half.
  static LOCKSTEP_LANES_INLINE void StoreParts(uint8_t* target, const Parts<2>& parts) {
    const U32 even = As<uint32_t>(parts.part[0]);
    const U32 odd = As<uint32_t>(parts.part[1]);
    const U16 upper = As<uint16_t>(even >> 16 | (odd & 0xFFFF0000u));
    const U16 lower = As<uint16_t>((even & 0xFFFFu) | odd << 16);
    // One is added where the lower half is above a half, or a half and the upper is odd: where the lower half and the
    // lower half less an even code's one both have their top bit set.
    const U16 rounded = upper + ((lower & (lower - (~upper & 1))) >> 15);
    const auto is_nan = As<int16_t>(upper & 0x7FFF) > 0x7F80;
    Store(target, is_nan ? Splat<uint16_t>(0x7FC0) : rounded);
  }

 private:
  using U16 = Vec<uint16_t>;
};
#endif

// float32 itself, so that conversions need no cases of their own.
template <>
struct FormatOfDType<DType::kF32> {
  static constexpr size_t kBytes = 4;

  static LOCKSTEP_LANES_INLINE F32 LoadOrdered(const uint8_t* source) { return Load<float>(source); }
  static LOCKSTEP_LANES_INLINE void StoreOrdered(uint8_t* target, F32 value) { Store(target, Canonical<float>(value)); }
};

}  // namespace
}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_NARROW_INL_H_
