// The two 8-bit floats of the Open Compute Project's OFP8 specification. Storage only: arithmetic is done in float.
//
//   Float8E4M3  4 exponent bits, 3 mantissa bits, largest value 448, no infinity, NaN 0x7F and 0xFF
//   Float8E5M2  5 exponent bits, 2 mantissa bits, largest value 57,344, infinities and NaNs as in IEEE 754
//
// From float: rounded once, to nearest, ties to even. What rounds beyond the largest value becomes NaN in E4M3 (the
// specification's non-saturating conversion; 464 still rounds down to 448) and infinity in E5M2. NaN is 0x7F in E4M3
// and 0x7E in E5M2, positive and without a payload. To float: exact, and NaN is 0x7FC00000.

#ifndef BASE_TYPES_FLOAT8_H_
#define BASE_TYPES_FLOAT8_H_

#include <cstdint>

#include "absl/base/attributes.h"
#include "base/types/narrow_float.h"

namespace lockstep {
namespace internal {

template <typename Format>
class Float8 {
 public:
  Float8() = default;
  ABSL_ATTRIBUTE_ALWAYS_INLINE explicit constexpr Float8(float value)
      : bits_(static_cast<uint8_t>(Format::Encode(__builtin_bit_cast(uint32_t, value)))) {}
  ABSL_ATTRIBUTE_ALWAYS_INLINE explicit constexpr operator float() const {
    return __builtin_bit_cast(float, Format::Decode(bits_));
  }

  ABSL_ATTRIBUTE_ALWAYS_INLINE static constexpr Float8 FromBits(uint8_t bits) { return Float8(bits, Bits()); }
  ABSL_ATTRIBUTE_ALWAYS_INLINE constexpr uint8_t bits() const { return bits_; }

 private:
  struct Bits {};
  ABSL_ATTRIBUTE_ALWAYS_INLINE constexpr Float8(uint8_t bits, Bits) : bits_(bits) {}

  uint8_t bits_;
};

}  // namespace internal

using Float8E4M3 = internal::Float8<internal::NarrowFloat<DType::kF8E4M3>>;
using Float8E5M2 = internal::Float8<internal::NarrowFloat<DType::kF8E5M2>>;

}  // namespace lockstep

#endif  // BASE_TYPES_FLOAT8_H_
