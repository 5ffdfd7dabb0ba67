#include "examples/fashion_mnist/stochastic_depth.h"

#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::testing::UnorderedElementsAre;

TEST(StochasticDepth, LeavesOutEachLayerInATwelfthOfTheMicroBatches) {
  std::map<int, int> counts;
  constexpr int kDraws = 12000;
  for (int64_t step = 0; step < kDraws; ++step) ++counts[DrawSkippedLayer({1, 2, 3}, 7, 0, step, 0)];
  std::vector<int> layers;
  for (const auto& [layer, count] : counts) {
    layers.push_back(layer);
    // Five standard deviations.
    EXPECT_NEAR(count, layer < 0 ? kDraws * 3 / 4 : kDraws / 12, layer < 0 ? 237 : 151) << "layer " << layer;
  }
  EXPECT_THAT(layers, UnorderedElementsAre(-1, 1, 2, 3));
}

TEST(StochasticDepth, IsTheSameForTheSameArgumentsAndAnotherForOthers) {
  const std::vector<int> layers = {1, 2, 3};
  const auto draws = [&layers](uint64_t seed, int rank, int micro_batch) {
    std::vector<int> drawn;
    for (int64_t step = 0; step < 100; ++step) {
      drawn.push_back(DrawSkippedLayer(layers, seed, rank, step, micro_batch));
    }
    return drawn;
  };
  EXPECT_EQ(draws(1, 0, 0), draws(1, 0, 0));
  EXPECT_NE(draws(1, 0, 0), draws(1, 1, 0)) << "of another rank";
  EXPECT_NE(draws(1, 0, 0), draws(1, 0, 1)) << "of another micro-batch";
  EXPECT_NE(draws(1, 0, 0), draws(uint64_t{1} << 32 | 1, 0, 0)) << "with another seed";
}

TEST(StochasticDepth, LeavesOutNothingWhereNothingCanBe) {
  for (int64_t step = 0; step < 100; ++step) EXPECT_EQ(DrawSkippedLayer({}, 1, 0, step, 0), -1);
}

}  // namespace
}  // namespace fashion_mnist
