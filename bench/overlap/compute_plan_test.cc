#include "bench/overlap/compute_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(PlanCompute, GivesForwardAThirdAndBackwardItsSharesByMultiplications) {
  ModelTable model;
  model.parameters = {{"embedding", {10, 2}, 0}, {"weight", {2, 2}, 3}, {"bias", {2}, 1}};
  const ComputePlan plan = PlanCompute(model, 6);
  EXPECT_THAT(plan.forward_seconds, DoubleEq(2));
  EXPECT_THAT(plan.backward_seconds, ElementsAre(DoubleEq(0), DoubleEq(3), DoubleEq(1)));
  EXPECT_THAT(plan.total_seconds(), DoubleEq(6));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
