#include "base/types/float8.h"

#include <limits>

#include "base/types/narrow_float_testing.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

static_assert(sizeof(Float8E4M3) == 1 && sizeof(Float8E5M2) == 1, "");
static_assert(Float8E4M3(1.0f).bits() == 0x38, "conversion works at compile time");
static_assert(static_cast<float>(Float8E5M2::FromBits(0xC0)) == -2.0f, "");

TEST(Float8E4M3Test, KnownValues) {
  EXPECT_EQ(Float8E4M3(448.0f).bits(), 0x7E);
  EXPECT_EQ(Float8E4M3(464.0f).bits(), 0x7E) << "a tie between 448 and the overflow goes to the even 448";
  EXPECT_EQ(Float8E4M3(465.0f).bits(), 0x7F) << "overflow is NaN";
  EXPECT_EQ(Float8E4M3(-465.0f).bits(), 0x7F) << "and a NaN has no sign";
  EXPECT_EQ(Float8E4M3(kInfinity).bits(), 0x7F);
  EXPECT_EQ(Float8E4M3(-kInfinity).bits(), 0x7F);
  EXPECT_EQ(Float8E4M3(0x1p-9f).bits(), 0x01) << "the smallest subnormal";
  EXPECT_EQ(Float8E4M3(-0x1p-10f).bits(), 0x80) << "a tie between zero and the smallest subnormal";
}

TEST(Float8E4M3Test, NanIsCanonical) {
  for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFFC00000u}) {
    EXPECT_EQ(Float8E4M3(FloatFromBits(bits)).bits(), 0x7F) << std::hex << bits;
  }
  EXPECT_EQ(FloatBits(static_cast<float>(Float8E4M3::FromBits(0xFF))), 0x7FC00000u);
}

TEST(Float8E5M2Test, KnownValues) {
  EXPECT_EQ(Float8E5M2(57344.0f).bits(), 0x7B);
  EXPECT_EQ(Float8E5M2(61439.0f).bits(), 0x7B);
  EXPECT_EQ(Float8E5M2(61440.0f).bits(), 0x7C) << "a tie between the largest value and infinity";
  EXPECT_EQ(Float8E5M2(-kInfinity).bits(), 0xFC);
  EXPECT_EQ(Float8E5M2(0x1p-16f).bits(), 0x01) << "the smallest subnormal";
}

TEST(Float8E5M2Test, NanIsCanonical) {
  for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0xFFC00000u}) {
    EXPECT_EQ(Float8E5M2(FloatFromBits(bits)).bits(), 0x7E) << std::hex << bits;
  }
}

}  // namespace
}  // namespace lockstep
