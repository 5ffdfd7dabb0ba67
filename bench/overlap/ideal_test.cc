#include "bench/overlap/ideal.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::DoubleEq;

TEST(IdealStepSeconds, IsComputationWhereNothingIsSent) {
  EXPECT_THAT(IdealStepSeconds(5, {}), DoubleEq(5));
  EXPECT_THAT(IdealStepSeconds(5, {{3, 0, 0}, {5, 0, 0}}), DoubleEq(5));
}

TEST(IdealStepSeconds, EndsWithTheLastBucketsTail) {
  // Forward ends at 2, gradients at 3, 4 and 5; only the last bucket sticks out.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 0}, {4, 1, 0}, {5, 1, 0}}), DoubleEq(6));
}

TEST(IdealStepSeconds, StartsABucketWhenTheOneBeforeIsThrough) {
  // The first is on the wire from 3 to 7, the second to 8, the third to 10.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 4, 0}, {4, 1, 0}, {5, 2, 0}}), DoubleEq(10));
}

TEST(IdealStepSeconds, WaitsForTheGradientsOfEarlierBuckets) {
  // The second bucket was ready before the first.
  EXPECT_THAT(IdealStepSeconds(5, {{4, 1, 0}, {3, 1, 0}}), DoubleEq(6));
}

TEST(IdealStepSeconds, HoldsComputationUpByTheProcessorTimeOfWhatOverlaps) {
  // From 3 to 4 half of the core is left, so the last gradient comes at 5.5, and its bucket has the core to itself.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 0.5}, {5, 1, 0.5}}), DoubleEq(6.5));
}

TEST(IdealStepSeconds, IsTheSumWhereCommunicationTakesTheWholeCore) {
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 1}, {5, 1, 1}}), DoubleEq(7));
  // As much where it is carried out on several cores.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 2}, {5, 1, 2}}), DoubleEq(7));
}

TEST(IdealStepSeconds, LetsComputationThatNoBucketWaitsForRunToItsEnd) {
  EXPECT_THAT(IdealStepSeconds(9, {{3, 1, 0}}), DoubleEq(9));
  EXPECT_THAT(IdealStepSeconds(9, {{3, 1, 1}}), DoubleEq(10));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
