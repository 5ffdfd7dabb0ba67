#include "examples/fashion_mnist/bf16.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> Rounded(const std::vector<float>& source) {
  std::vector<float> target(source.size());
  RoundToBf16(source, &target);
  return target;
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_THAT(Rounded({1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1.01p-8f, -1.0f - 0x3p-8f}),
              testing::ElementsAre(1.0f, 1.0f + 0x1p-6f, 1.0f + 0x1p-7f, -1.0f - 0x1p-6f));
  EXPECT_THAT(Rounded({std::numeric_limits<float>::max()}), testing::ElementsAre(kInfinity)) << "it is nearer";
}

TEST(Bf16, LeavesNumbersOfEightBitsAndNanAsTheyAre) {
  const std::vector<float> exact = {0.0f, -0.5f, 255.0f, 0x1.fep100f, kInfinity, -kInfinity};
  EXPECT_EQ(Rounded(exact), exact);
  EXPECT_TRUE(std::signbit(Rounded({-0.0f})[0]));
  EXPECT_TRUE(std::isnan(Rounded({std::nanf("1")})[0]));
}

}  // namespace
}  // namespace fashion_mnist
