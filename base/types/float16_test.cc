#include "base/types/float16.h"

#include <cmath>
#include <limits>

#include "base/types/narrow_float_testing.h"
#include "gtest/gtest.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep {
namespace {

static_assert(sizeof(Float16) == 2, "");
static_assert(Float16(1.0f).bits() == 0x3C00, "conversion works at compile time");
static_assert(static_cast<float>(Float16::FromBits(0xC000)) == -2.0f, "");

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

TEST(Float16Test, NanIsCanonical) {
  for (uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFC12345u}) {
    EXPECT_EQ(Float16(FloatFromBits(bits)).bits(), 0x7E00) << std::hex << bits;
  }
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) uint32_t DisagreementsWithHardware(uint32_t stride) {
  uint32_t disagreements = 0;
  for (uint64_t bits = 0; bits <= std::numeric_limits<uint32_t>::max(); bits += stride) {
    const float value = FloatFromBits(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;  // the hardware keeps sign and payload
    const uint16_t hardware = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
    if (Float16(value).bits() != hardware) ++disagreements;
  }
  return disagreements;
}

// One float in 251, a prime, so that every exponent meets every pattern of low bits. Stride 1 agrees too; an optimised
// build takes a quarter of a minute for it.
TEST(Float16Test, AgreesWithTheProcessorsConversion) {
  // clang 14 cannot ask for F16C; every processor with AVX2 has it.
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "the processor has no F16C";
  EXPECT_EQ(DisagreementsWithHardware(251), 0);
}
#endif

}  // namespace
}  // namespace lockstep
