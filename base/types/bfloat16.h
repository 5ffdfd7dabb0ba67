// bfloat16: the upper half of a float. Storage only: arithmetic is done in float.
//
// From float: rounded once, to nearest, ties to even, subnormals included; beyond the largest finite value by half a
// unit or more is infinity; NaN is 0x7FC0, positive and without a payload. To float: exact, and NaN is 0x7FC00000.
// Everything is forced inline for the reason that base/types/narrow_float.h gives.

#ifndef BASE_TYPES_BFLOAT16_H_
#define BASE_TYPES_BFLOAT16_H_

#include <cstdint>

#include "absl/base/attributes.h"

namespace lockstep {

class BFloat16 {
 public:
  BFloat16() = default;
  ABSL_ATTRIBUTE_ALWAYS_INLINE explicit constexpr BFloat16(float value)
      : bits_(Encode(__builtin_bit_cast(uint32_t, value))) {}
  ABSL_ATTRIBUTE_ALWAYS_INLINE explicit constexpr operator float() const {
    return __builtin_bit_cast(float, (bits_ & 0x7FFF) > 0x7F80 ? 0x7FC00000u : static_cast<uint32_t>(bits_) << 16);
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr BFloat16 FromBits(uint16_t bits) { return BFloat16(bits, Bits()); }
  ABSL_ATTRIBUTE_ALWAYS_INLINE constexpr uint16_t bits() const { return bits_; }

 private:
  struct Bits {};
  ABSL_ATTRIBUTE_ALWAYS_INLINE constexpr BFloat16(uint16_t bits, Bits) : bits_(bits) {}

  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr uint16_t Encode(uint32_t bits) {
    // The carry of the rounding may run into the exponent, and from the largest finite value into infinity.
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
  }

  uint16_t bits_;
};

}  // namespace lockstep

#endif  // BASE_TYPES_BFLOAT16_H_
