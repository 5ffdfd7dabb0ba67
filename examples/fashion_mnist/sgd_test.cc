#include "examples/fashion_mnist/sgd.h"

#include <vector>

#include "examples/fashion_mnist/model.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

TEST(Sgd, MomentumAccumulates) {
  Model model({1, 1}, 1);
  Sgd sgd(&model.parameters(), 0.5f);
  Parameter& weight = model.parameters()[0];
  weight.value[0] = 1.0f;
  weight.gradient[0] = 1.0f;
  weight.has_gradient = true;
  sgd.StepAll(0.25f);
  EXPECT_EQ(weight.value[0], 0.75f);
  sgd.StepAll(0.25f);
  EXPECT_EQ(weight.value[0], 0.75f - 0.25f * 1.5f);
}

TEST(Sgd, LeavesAParameterWithoutAGradientAndItsMomentumAlone) {
  Model model({1, 1}, 1);
  Sgd sgd(&model.parameters(), 0.5f);
  Parameter& weight = model.parameters()[0];
  weight.value[0] = 1.0f;
  const float gradient = 1.0f;
  sgd.Step(0, &gradient, 0.25f);
  weight.gradient[0] = 100.0f;
  sgd.StepAll(0.25f);
  EXPECT_EQ(weight.value[0], 0.75f);
  sgd.Step(0, &gradient, 0.25f);
  EXPECT_EQ(weight.value[0], 0.75f - 0.25f * 1.5f);
}

// Steps that are less than half of bf16's distance from 1 to the next number would be lost without the master copy.
TEST(Sgd, SmallStepsAddUpInTheMasterCopy) {
  Model model({1, 1}, 1);
  Sgd sgd(&model.parameters(), 0.0f);
  Parameter& weight = model.parameters()[0];
  weight.master = {1.0f};
  weight.value = {1.0f};
  const float gradient = -1.0f;
  sgd.Step(0, &gradient, 0x1p-9f);
  EXPECT_EQ(weight.value[0], 1.0f);
  EXPECT_EQ(weight.master[0], 1.0f + 0x1p-9f);
  for (int i = 0; i < 3; ++i) sgd.Step(0, &gradient, 0x1p-9f);
  EXPECT_EQ(weight.value[0], 1.0f + 0x1p-7f);
}

TEST(LearningRate, RisesToItsPeakAndFallsToZero) {
  EXPECT_FLOAT_EQ(LearningRate(1.0f, 0, 1000), 1.0f / 50);
  EXPECT_FLOAT_EQ(LearningRate(1.0f, 49, 1000), 1.0f);
  EXPECT_FLOAT_EQ(LearningRate(1.0f, 50, 1000), 1.0f);
  EXPECT_FLOAT_EQ(LearningRate(1.0f, 525, 1000), 0.5f);
  EXPECT_LT(LearningRate(1.0f, 999, 1000), 1e-4f);
  EXPECT_FLOAT_EQ(LearningRate(0.1f, 0, 1), 0.1f);
}

}  // namespace
}  // namespace fashion_mnist
