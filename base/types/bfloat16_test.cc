#include "base/types/bfloat16.h"

#include <limits>

#include "base/types/narrow_float_testing.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

static_assert(sizeof(BFloat16) == 2, "");
static_assert(BFloat16(1.0f).bits() == 0x3F80, "conversion works at compile time");
static_assert(static_cast<float>(BFloat16::FromBits(0xC000)) == -2.0f, "");

TEST(BFloat16Test, KnownValues) {
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits(), 0x7F80) << "rounds up to infinity";
  EXPECT_EQ(BFloat16(FloatFromBits(0x7F7F7FFF)).bits(), 0x7F7F);
  EXPECT_EQ(BFloat16(1e-39f).bits(), 0x000B) << "subnormals are kept, unlike in AVX-512's conversion";
  EXPECT_EQ(BFloat16(-0.0f).bits(), 0x8000);
  EXPECT_EQ(BFloat16(FloatFromBits(0x3F808000)).bits(), 0x3F80) << "a tie goes to the even neighbour below";
  EXPECT_EQ(BFloat16(FloatFromBits(0x3F818000)).bits(), 0x3F82) << "a tie goes to the even neighbour above";
}

TEST(BFloat16Test, NanIsCanonical) {
  for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    EXPECT_EQ(BFloat16(FloatFromBits(bits)).bits(), 0x7FC0) << std::hex << bits;
  }
}

}  // namespace
}  // namespace lockstep
