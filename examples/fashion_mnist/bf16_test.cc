#include "examples/fashion_mnist/bf16.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(ToBf16(1.0f), 0x3f80);
  EXPECT_EQ(ToBf16(-2.0f), 0xc000);
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f), 0x3f80) << "a tie, down to even";
  EXPECT_EQ(ToBf16(1.0f + 0x3p-8f), 0x3f82) << "a tie, up to even";
  EXPECT_EQ(ToBf16(1.0f + 0x1.01p-8f), 0x3f81);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()), 0x7f80) << "infinity is nearer";
  EXPECT_EQ(ToBf16(-0.0f), 0x8000);
}

TEST(Bf16, NumbersWithEightBitsComeBackAndNanStaysOne) {
  for (float value : {0.0f, -0.5f, 255.0f, 0x1.fep100f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(FromBf16(ToBf16(value)), value);
  }
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::nanf("1")))));
}

TEST(Bf16, ConvertsVectors) {
  const std::vector<float> source = {1.0f, 1.0f + 0x1p-8f, -3.0f};
  std::vector<uint16_t> halves(3);
  std::vector<float> rounded(3);
  ToBf16(source, &halves);
  RoundToBf16(source, &rounded);
  EXPECT_THAT(halves, testing::ElementsAre(0x3f80, 0x3f80, 0xc040));
  EXPECT_THAT(rounded, testing::ElementsAre(1.0f, 1.0f, -3.0f));
}

}  // namespace
}  // namespace fashion_mnist
