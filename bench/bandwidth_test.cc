#include "bench/bandwidth.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

TEST(AlgorithmBandwidth, CountsDecimalGigabytes) {
  EXPECT_DOUBLE_EQ(AlgorithmBandwidth(3'000'000'000, 1.5), 2.0);
  EXPECT_DOUBLE_EQ(AlgorithmBandwidth(0, 1.5), 0.0);
  EXPECT_DOUBLE_EQ(AlgorithmBandwidth(8, 0), 0.0);
}

TEST(BusFactor, IsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor({Collective::kAllReduce}, 2), 1.0);
  EXPECT_DOUBLE_EQ(BusFactor({Collective::kAllReduce}, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor({Collective::kAllGather}, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor({Collective::kReduceScatter}, 8), 0.875);
  EXPECT_DOUBLE_EQ(BusFactor({Collective::kBroadcast}, 8), 1.0);
  EXPECT_DOUBLE_EQ(BusFactor({Collective::kReduce}, 8), 1.0);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
