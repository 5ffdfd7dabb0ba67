// A slow model of a narrow float format, built from its definition with doubles and a search over all values, and the
// checks that compare a conversion with it. Shares nothing with base/types/narrow_float.h.

#ifndef BASE_TYPES_NARROW_FLOAT_TESTING_H_
#define BASE_TYPES_NARROW_FLOAT_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {

inline uint32_t FloatBits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatFromBits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct NarrowFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // then the highest exponent is for infinity and NaN; otherwise only its last mantissa is NaN
  uint32_t nan;       // the NaN that conversion gives
};

class NarrowFloatModel {
 public:
  explicit NarrowFloatModel(NarrowFormat format) : format_(format) {
    const uint32_t end = sign();
    for (uint32_t code = 0; code < end && !IsNan(code) && !IsInfinity(code); ++code) values_.push_back(Value(code));
    // What would come next if exponents went on: numbers that round to it overflow.
    values_.push_back(Value(static_cast<uint32_t>(values_.size())));
  }

  uint32_t sign() const { return 1u << (format_.exponent_bits + format_.mantissa_bits); }
  // The code after the largest finite one.
  uint32_t overflow() const { return static_cast<uint32_t>(values_.size()) - 1; }
  // Of the non-negative codes in order, and of the overflow.
  const std::vector<double>& values() const { return values_; }

  // What converting `code` to float must give.
  uint32_t Decode(uint32_t code) const {
    const uint32_t magnitude = code & (sign() - 1);
    if (IsNan(magnitude)) return 0x7FC00000;
    const double value = IsInfinity(magnitude) ? std::numeric_limits<double>::infinity() : Value(magnitude);
    return FloatBits(static_cast<float>(code & sign() ? -value : value));
  }

  // What converting `value` from float must give: the nearest code, the even one of two equally near.
  uint32_t Encode(float value) const {
    if (std::isnan(value)) return format_.nan;
    const double magnitude = std::fabs(static_cast<double>(value));
    uint32_t code = overflow();
    if (magnitude < values_.back()) {
      const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
      const uint32_t low = static_cast<uint32_t>(above - values_.begin()) - 1;
      const double middle = (values_[low] + values_[low + 1]) / 2;
      code = magnitude < middle || (magnitude == middle && low % 2 == 0) ? low : low + 1;
    }
    if (code == overflow() && !format_.has_infinity) return format_.nan;
    return std::signbit(value) ? code | sign() : code;
  }

 private:
  uint32_t Exponent(uint32_t magnitude) const { return magnitude >> format_.mantissa_bits; }
  uint32_t Mantissa(uint32_t magnitude) const { return magnitude & ((1u << format_.mantissa_bits) - 1); }
  bool HighestExponent(uint32_t magnitude) const { return Exponent(magnitude) == (1u << format_.exponent_bits) - 1; }
  bool IsInfinity(uint32_t magnitude) const {
    return format_.has_infinity && HighestExponent(magnitude) && Mantissa(magnitude) == 0;
  }
  bool IsNan(uint32_t magnitude) const {
    if (!HighestExponent(magnitude)) return false;
    return format_.has_infinity ? Mantissa(magnitude) != 0 : Mantissa(magnitude) == (1u << format_.mantissa_bits) - 1;
  }
  double Value(uint32_t magnitude) const {
    const int bias = (1 << (format_.exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(Exponent(magnitude));
    const double fraction = std::ldexp(Mantissa(magnitude), -format_.mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  }

  const NarrowFormat format_;
  std::vector<double> values_;
};

template <typename Narrow>
class NarrowFloatChecks {
 public:
  explicit NarrowFloatChecks(NarrowFormat format) : model_(format) {}

  void EveryCodeBecomesItsFloat() const {
    for (uint32_t code = 0; code < 2 * model_.sign(); ++code) {
      ASSERT_EQ(FloatBits(static_cast<float>(FromBits(code))), model_.Decode(code)) << "code 0x" << std::hex << code;
    }
  }

  void EveryCodeSurvivesTheWayThroughFloat() const {
    for (uint32_t code = 0; code < 2 * model_.sign(); ++code) {
      const float value = static_cast<float>(FromBits(code));
      const uint32_t expected = std::isnan(value) ? model_.Encode(value) : code;
      ASSERT_EQ(Narrow(value).bits(), expected) << "code 0x" << std::hex << code;
    }
  }

  // Each value, each middle between two, the bound of overflow, and the floats next to all of these.
  void FloatsAroundEveryMiddleRoundToTheNearest() const {
    const std::vector<double>& values = model_.values();
    for (size_t i = 0; i + 1 < values.size(); ++i) {
      for (double exact : {values[i], (values[i] + values[i + 1]) / 2, values[i + 1]}) {
        const float value = static_cast<float>(exact);
        if (std::isfinite(value)) {
          ASSERT_EQ(static_cast<double>(value), exact);
        }
        for (float near : {value, std::nextafter(value, 0.0f), std::nextafter(value, INFINITY)}) ExpectAgreement(near);
      }
    }
  }

  void FloatsOfEveryExponentRoundToTheNearest() const {
    const uint32_t seed = std::random_device()();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    for (uint32_t exponent = 0; exponent < 256; ++exponent) {
      for (int i = 0; i < 1000; ++i) ExpectAgreement(FloatFromBits(exponent << 23 | (random() & 0x7FFFFF)));
      for (uint32_t mantissa : {0u, 1u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x7FFFFFu}) {
        ExpectAgreement(FloatFromBits(exponent << 23 | mantissa));
      }
    }
  }

 private:
  using Bits = decltype(Narrow().bits());

  static Narrow FromBits(uint32_t code) { return Narrow::FromBits(static_cast<Bits>(code)); }

  void ExpectAgreement(float magnitude) const {
    for (float value : {magnitude, -magnitude}) {
      const uint32_t expected = model_.Encode(value);
      const uint32_t actual = Narrow(value).bits();
      // The macro only on failure: it is slow, and millions of values come by.
      if (actual != expected) {
        ADD_FAILURE() << std::hexfloat << value << std::hex << " became 0x" << actual << ", expected 0x" << expected;
      }
    }
  }

  const NarrowFloatModel model_;
};

}  // namespace lockstep

// The tests of one type, whose format follows: NARROW_FLOAT_TESTS(Float16, NarrowFormat{5, 10, true, 0x7E00})
#define NARROW_FLOAT_TESTS(Type, ...)                                                                             \
  TEST(Type##Test, EveryCodeBecomesItsFloat) { NarrowFloatChecks<Type>(__VA_ARGS__).EveryCodeBecomesItsFloat(); } \
  TEST(Type##Test, EveryCodeSurvivesTheWayThroughFloat) {                                                         \
    NarrowFloatChecks<Type>(__VA_ARGS__).EveryCodeSurvivesTheWayThroughFloat();                                   \
  }                                                                                                               \
  TEST(Type##Test, FloatsAroundEveryMiddleRoundToTheNearest) {                                                    \
    NarrowFloatChecks<Type>(__VA_ARGS__).FloatsAroundEveryMiddleRoundToTheNearest();                              \
  }                                                                                                               \
  TEST(Type##Test, FloatsOfEveryExponentRoundToTheNearest) {                                                      \
    NarrowFloatChecks<Type>(__VA_ARGS__).FloatsOfEveryExponentRoundToTheNearest();                                \
  }

#endif  // BASE_TYPES_NARROW_FLOAT_TESTING_H_
