// Conversion between float and the 16- and 8-bit formats with few exponent bits, in integer arithmetic.
//
// Bits in, bits out: the result depends on no rounding mode, no flush-to-zero flag and no instruction set. Everything
// is forced inline, because translation units compiled for different instruction sets include it: an out-of-line copy
// with AVX code in it could be the one the linker keeps for all.
//
// Include base/types/float16.h or base/types/float8.h instead.

#ifndef BASE_TYPES_NARROW_FLOAT_H_
#define BASE_TYPES_NARROW_FLOAT_H_

#include <cstdint>

#include "absl/base/attributes.h"
#include "base/types/dtype.h"

namespace lockstep::internal {

inline constexpr uint32_t kFloatInfinityBits = 0x7F800000;
inline constexpr uint32_t kFloatNanBits = 0x7FC00000;  // the quiet NaN that every conversion to float gives

// A format with gradual underflow. kNan is the NaN that encoding gives; kOverflow is the first code after the largest finite
// one: infinity where the format has it, else a NaN.
template <DType kDType>
struct NarrowFloat {
  static constexpr FloatFormat kFormat = FormatOf(kDType);
  static constexpr int kExponentBits = kFormat.exponent_bits;
  static constexpr int kMantissaBits = kFormat.mantissa_bits;
  static constexpr uint32_t kOverflow = kFormat.overflow();
  static constexpr uint32_t kNan = kFormat.nan();
  static constexpr int kBias = kFormat.bias();
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignShift = kExponentBits + kMantissaBits;
  static constexpr uint32_t kSign = 1u << kSignShift;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
  static constexpr uint32_t kMinNormal = static_cast<uint32_t>(128 - kBias) << 23;

  // Rounds once, to nearest, ties to even. What rounds beyond the largest finite value becomes kOverflow; NaN becomes
  // kNan. A NaN has no sign and no payload here, whatever it came from.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr uint32_t Encode(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > kFloatInfinityBits) return kNan;
    uint32_t code = 0;
    if (magnitude >= kMinNormal) {
      // A carry out of the mantissa moves on to the next exponent, as it should.
      code = Round(magnitude - kRebias, kShift);
      if (code >= kOverflow) {
        if (kOverflow == kNan) return kNan;
        code = kOverflow;
      }
    } else {
      // Counts in units of the smallest subnormal. Beyond 25 places even the leading bit is less than half a unit.
      const uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
      const int places = 151 - kBias - kMantissaBits - static_cast<int>(magnitude >> 23);
      code = Round(significand, places < 25 ? places : 25);
    }
    return code | (bits >> 31 << kSignShift);
  }

  // Exact; every NaN becomes kFloatNanBits.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr uint32_t Decode(uint32_t code) {
    const uint32_t magnitude = code & (kSign - 1);
    if (magnitude >= kOverflow) {
      if (magnitude > kOverflow || kOverflow == kNan) return kFloatNanBits;
      return kFloatInfinityBits | Sign(code);
    }
    if (magnitude >> kMantissaBits != 0) return ((magnitude << kShift) + kRebias) | Sign(code);
    if (magnitude == 0) return Sign(code);
    // A subnormal is a normal float: its leading bit becomes the implicit one.
    const int places = __builtin_clz(magnitude) - 8;
    return ((magnitude << places & 0x7FFFFF) | static_cast<uint32_t>(151 - kBias - kMantissaBits - places) << 23) |
           Sign(code);
  }

 private:
  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr uint32_t Round(uint32_t value, int places) {
    return (value + (1u << (places - 1)) - 1 + (value >> places & 1)) >> places;
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr uint32_t Sign(uint32_t code) { return code >> kSignShift << 31; }
};

}  // namespace lockstep::internal

#endif  // BASE_TYPES_NARROW_FLOAT_H_
