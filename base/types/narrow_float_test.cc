// The narrow float types: against a slow model of their formats, built from the definition with doubles and a search over all
// values, which shares nothing with base/types/narrow_float.h; and against known values.

#include "base/types/narrow_float.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "base/types/float16.h"
#include "base/types/float8.h"
#include "gtest/gtest.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2 && sizeof(Float8E4M3) == 1 && sizeof(Float8E5M2) == 1, "");
// Conversion works at compile time.
static_assert(Float16(1.0f).bits() == 0x3C00 && static_cast<float>(Float16::FromBits(0xC000)) == -2.0f, "");
static_assert(BFloat16(1.0f).bits() == 0x3F80 && static_cast<float>(BFloat16::FromBits(0xC000)) == -2.0f, "");
static_assert(Float8E4M3(1.0f).bits() == 0x38 && static_cast<float>(Float8E5M2::FromBits(0xC0)) == -2.0f, "");

uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
float FloatFromBits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

class NarrowFloatModel {
 public:
  explicit NarrowFloatModel(FloatFormat format) : format_(format) {
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
    if (std::isnan(value)) return static_cast<uint32_t>(format_.nan());
    const double magnitude = std::fabs(static_cast<double>(value));
    uint32_t code = overflow();
    if (magnitude < values_.back()) {
      const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
      const uint32_t low = static_cast<uint32_t>(above - values_.begin()) - 1;
      const double middle = (values_[low] + values_[low + 1]) / 2;
      code = magnitude < middle || (magnitude == middle && low % 2 == 0) ? low : low + 1;
    }
    if (code == overflow() && !format_.has_infinity) return static_cast<uint32_t>(format_.nan());
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

  const FloatFormat format_;
  std::vector<double> values_;
};

template <typename Type>
FloatFormat FormatOfType();
#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, ...) \
  template <>                                              \
  FloatFormat FormatOfType<Type>() {                       \
    return FormatOf(DType::k##id);                         \
  }
#include "base/types/dtypes.inc"

template <typename Narrow>
class NarrowFloatTest : public testing::Test {
 protected:
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

  const NarrowFloatModel model_{FormatOfType<Narrow>()};
};

using NarrowFloats = testing::Types<Float16, BFloat16, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(NarrowFloatTest, NarrowFloats);

TYPED_TEST(NarrowFloatTest, EveryCodeBecomesItsFloat) {
  for (uint32_t code = 0; code < 2 * this->model_.sign(); ++code) {
    ASSERT_EQ(FloatBits(static_cast<float>(this->FromBits(code))), this->model_.Decode(code))
        << "code 0x" << std::hex << code;
  }
}

TYPED_TEST(NarrowFloatTest, EveryCodeSurvivesTheWayThroughFloat) {
  for (uint32_t code = 0; code < 2 * this->model_.sign(); ++code) {
    const float value = static_cast<float>(this->FromBits(code));
    const uint32_t expected = std::isnan(value) ? this->model_.Encode(value) : code;
    ASSERT_EQ(TypeParam(value).bits(), expected) << "code 0x" << std::hex << code;
  }
}

// Each value, each middle between two, the bound of overflow, and the floats next to all of these.
TYPED_TEST(NarrowFloatTest, FloatsAroundEveryMiddleRoundToTheNearest) {
  const std::vector<double>& values = this->model_.values();
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    for (double exact : {values[i], (values[i] + values[i + 1]) / 2, values[i + 1]}) {
      const float value = static_cast<float>(exact);
      if (std::isfinite(value)) {
        ASSERT_EQ(static_cast<double>(value), exact);
      }
      for (float near : {value, std::nextafter(value, 0.0f), std::nextafter(value, INFINITY)})
        this->ExpectAgreement(near);
    }
  }
}

TYPED_TEST(NarrowFloatTest, FloatsOfEveryExponentRoundToTheNearest) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (int i = 0; i < 1000; ++i) this->ExpectAgreement(FloatFromBits(exponent << 23 | (random() & 0x7FFFFF)));
    for (uint32_t mantissa : {0u, 1u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x7FFFFFu}) {
      this->ExpectAgreement(FloatFromBits(exponent << 23 | mantissa));
    }
  }
}

TYPED_TEST(NarrowFloatTest, NanIsCanonical) {
  for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFC00000u, 0xFFC12345u, 0xFFFFFFFFu}) {
    EXPECT_EQ(TypeParam(FloatFromBits(bits)).bits(), FormatOfType<TypeParam>().nan()) << std::hex << bits;
  }
}

TEST(Float16Test, KnownValues) {
  EXPECT_EQ(Float16(65504.0f).bits(), 0x7BFF);
  EXPECT_EQ(Float16(65519.99f).bits(), 0x7BFF);
  EXPECT_EQ(Float16(65520.0f).bits(), 0x7C00);
  EXPECT_EQ(Float16(-std::numeric_limits<float>::infinity()).bits(), 0xFC00);
  EXPECT_EQ(Float16(-0.0f).bits(), 0x8000);
  EXPECT_EQ(Float16(0x1p-24f).bits(), 0x0001);
  EXPECT_EQ(Float16(0x1p-25f).bits(), 0x0000) << "a tie between zero and the smallest subnormal";
  EXPECT_EQ(Float16(0x1.000002p-25f).bits(), 0x0001);
  EXPECT_EQ(Float16(std::numeric_limits<float>::denorm_min()).bits(), 0x0000);
}

TEST(BFloat16Test, KnownValues) {
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits(), 0x7F80) << "rounds up to infinity";
  EXPECT_EQ(BFloat16(FloatFromBits(0x7F7F7FFF)).bits(), 0x7F7F);
  EXPECT_EQ(BFloat16(1e-39f).bits(), 0x000B) << "subnormals are kept, unlike in AVX-512's conversion";
  EXPECT_EQ(BFloat16(-0.0f).bits(), 0x8000);
  EXPECT_EQ(BFloat16(FloatFromBits(0x3F808000)).bits(), 0x3F80) << "a tie goes to the even neighbour below";
  EXPECT_EQ(BFloat16(FloatFromBits(0x3F818000)).bits(), 0x3F82) << "a tie goes to the even neighbour above";
}

TEST(Float8E4M3Test, KnownValues) {
  EXPECT_EQ(Float8E4M3(448.0f).bits(), 0x7E);
  EXPECT_EQ(Float8E4M3(464.0f).bits(), 0x7E) << "a tie between 448 and the overflow goes to the even 448";
  EXPECT_EQ(Float8E4M3(465.0f).bits(), 0x7F) << "overflow is NaN";
  EXPECT_EQ(Float8E4M3(-465.0f).bits(), 0x7F) << "and a NaN has no sign";
  EXPECT_EQ(Float8E4M3(kInfinity).bits(), 0x7F);
  EXPECT_EQ(Float8E4M3(-kInfinity).bits(), 0x7F);
  EXPECT_EQ(Float8E4M3(0x1p-9f).bits(), 0x01) << "the smallest subnormal";
  EXPECT_EQ(Float8E4M3(-0x1p-10f).bits(), 0x80) << "a tie between zero and the smallest subnormal";
  EXPECT_EQ(FloatBits(static_cast<float>(Float8E4M3::FromBits(0xFF))), 0x7FC00000u);
}

TEST(Float8E5M2Test, KnownValues) {
  EXPECT_EQ(Float8E5M2(57344.0f).bits(), 0x7B);
  EXPECT_EQ(Float8E5M2(61439.0f).bits(), 0x7B);
  EXPECT_EQ(Float8E5M2(61440.0f).bits(), 0x7C) << "a tie between the largest value and infinity";
  EXPECT_EQ(Float8E5M2(-kInfinity).bits(), 0xFC);
  EXPECT_EQ(Float8E5M2(0x1p-16f).bits(), 0x01) << "the smallest subnormal";
}

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
__attribute__((target("f16c"))) uint16_t HardwareFloat16(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
#else
uint16_t HardwareFloat16(float value) { return __builtin_bit_cast(uint16_t, static_cast<__fp16>(value)); }
#endif

uint32_t DisagreementsWithHardware(uint32_t stride) {
  uint32_t disagreements = 0;
  for (uint64_t bits = 0; bits <= std::numeric_limits<uint32_t>::max(); bits += stride) {
    const float value = FloatFromBits(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;  // the hardware keeps sign and payload
    if (Float16(value).bits() != HardwareFloat16(value)) ++disagreements;
  }
  return disagreements;
}

// One float in 251, a prime, so that every exponent meets every pattern of low bits. Stride 1 agrees too; an optimised
// build takes a quarter of a minute for it.
TEST(Float16Test, AgreesWithTheProcessorsConversion) {
#if defined(__x86_64__)
  // clang 14 cannot ask for F16C; every processor with AVX2 has it.
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "the processor has no F16C";
#endif
  EXPECT_EQ(DisagreementsWithHardware(251), 0);
}
#endif

}  // namespace
}  // namespace lockstep
