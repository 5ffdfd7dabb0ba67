// IEEE 754 binary16: 5 exponent bits, 10 mantissa bits. Storage only: arithmetic is done in float.
//
// From float: rounded once, to nearest, ties to even; beyond 65,504 by half a unit or more is infinity; NaN is 0x7E00,
// positive and without a payload. To float: exact, and NaN is 0x7FC00000.

#ifndef BASE_TYPES_FLOAT16_H_
#define BASE_TYPES_FLOAT16_H_

#include <cstdint>

#include "absl/base/attributes.h"
#include "base/types/narrow_float.h"

namespace lockstep {

class Float16 {
 public:
  Float16() = default;
  ABSL_ATTRIBUTE_ALWAYS_INLINE explicit constexpr Float16(float value)
      : bits_(static_cast<uint16_t>(Format::Encode(__builtin_bit_cast(uint32_t, value)))) {}
  ABSL_ATTRIBUTE_ALWAYS_INLINE explicit constexpr operator float() const {
    return __builtin_bit_cast(float, Format::Decode(bits_));
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr Float16 FromBits(uint16_t bits) { return Float16(bits, Bits()); }
  ABSL_ATTRIBUTE_ALWAYS_INLINE constexpr uint16_t bits() const { return bits_; }

 private:
  using Format = internal::NarrowFloat<DType::kF16>;
  struct Bits {};
  ABSL_ATTRIBUTE_ALWAYS_INLINE constexpr Float16(uint16_t bits, Bits) : bits_(bits) {}

  uint16_t bits_;
};

}  // namespace lockstep

#endif  // BASE_TYPES_FLOAT16_H_
