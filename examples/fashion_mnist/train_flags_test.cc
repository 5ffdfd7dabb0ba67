// What the flags that change a step promise of the losses, in short runs. How well they train is in README.md.

#include <cmath>
#include <string>
#include <vector>

#include "examples/fashion_mnist/train_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kSteps = 10;

std::vector<double> Losses(const std::vector<std::string>& flags) { return TrainAndReadLosses(2, kSteps, flags); }

const std::vector<double>& PlainLosses() {
  static const auto& losses = *new std::vector<double>(Losses({}));
  return losses;
}

// The runs also compare the parameters of the ranks at their end.
void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected, double relative) {
  ASSERT_EQ(losses.size(), kSteps);
  ASSERT_EQ(expected.size(), kSteps);
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], relative * expected[i]) << "step " << i;
  }
}

// Two numbers have one sum, whoever adds them.
TEST(TrainFlags, HooksThatAverageGiveTheSameLosses) {
  ASSERT_EQ(PlainLosses().size(), kSteps);
  EXPECT_EQ(Losses({"--hook=all_reduce"}), PlainLosses());
  EXPECT_EQ(Losses({"--hook=callback"}), PlainLosses());
}

// Of a bucket that three ranks cannot share equally, and of two bytes an element.
TEST(TrainFlags, TheCallbackAveragesWhatItsPartsLeave) {
  const std::vector<double> expected = TrainAndReadLosses(3, kSteps, {"--batch=255"});
  ExpectNear(TrainAndReadLosses(3, kSteps, {"--batch=255", "--hook=callback"}), expected, 1e-4);
  ExpectNear(Losses({"--mixed-precision", "--hook=callback"}), Losses({"--mixed-precision"}), 1e-4);
}

TEST(TrainFlags, CompressingHooksRoundGradients) {
  for (const char* hook : {"--hook=fp16_compress", "--hook=bf16_compress"}) {
    const std::vector<double> losses = Losses({hook});
    ExpectNear(losses, PlainLosses(), 1e-2);
    EXPECT_NE(losses, PlainLosses()) << hook;
  }
}

TEST(TrainFlags, MicroBatchesAddUpToTheBatch) {
  const std::vector<double> single = Losses({"--accumulate=4"});
  ExpectNear(single, PlainLosses(), 1e-4);
  ExpectNear(Losses({"--accumulate=4", "--sync-strategy=multi_auto_sync"}), PlainLosses(), 1e-4);
  EXPECT_EQ(Losses({"--accumulate=4", "--sync-strategy=forced_sync"}), single);
}

TEST(TrainFlags, OptimizerInBackwardTakesTheSameSteps) {
  EXPECT_EQ(Losses({"--optimizer-in-backward", "--bucket-mb=0.001"}), PlainLosses());
  EXPECT_EQ(Losses({"--optimizer-in-backward", "--accumulate=2"}), Losses({"--accumulate=2"}));
}

TEST(TrainFlags, MixedPrecisionStaysNearFullPrecision) {
  const std::vector<double> losses = Losses({"--mixed-precision"});
  ExpectNear(losses, PlainLosses(), 3e-2);
  EXPECT_NE(losses, PlainLosses());
  EXPECT_EQ(Losses({"--mixed-precision", "--optimizer-in-backward"}), losses);
}

// Layers are left out by each rank on its own, so that in the first steps some gradients come from one rank only, and
// some from none.
TEST(TrainFlags, UnusedParametersAreAveragedOverThoseThatUseThem) {
  const std::vector<double> losses = Losses({"--find-unused"});
  ASSERT_EQ(losses.size(), kSteps);
  EXPECT_NE(losses, PlainLosses());
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_EQ(Losses({"--find-unused", "--optimizer-in-backward"}), losses);
}

// An average of a micro-batch is a gradient like another for the next, also where this rank had none.
TEST(TrainFlags, SyncStrategiesAgreeOnUnusedParameters) {
  const std::vector<double> forced = Losses({"--find-unused", "--accumulate=4", "--sync-strategy=forced_sync"});
  ASSERT_EQ(forced.size(), kSteps);
  EXPECT_EQ(Losses({"--find-unused", "--accumulate=4"}), forced);
  ExpectNear(Losses({"--find-unused", "--accumulate=4", "--sync-strategy=multi_auto_sync"}), forced, 1e-4);
}

TEST(TrainFlags, EverythingAtOnce) {
  const std::vector<std::string> flags = {"--find-unused", "--mixed-precision", "--accumulate=2", "--hook=callback"};
  const std::vector<double> losses = Losses(flags);
  ASSERT_EQ(losses.size(), kSteps);
  std::vector<std::string> with_optimizer = flags;
  with_optimizer.push_back("--optimizer-in-backward");
  EXPECT_EQ(Losses(with_optimizer), losses);
}

TEST(TrainFlags, SharedWeightsFormAStaticGraph) {
  const std::vector<double> losses = Losses({"--static-graph"});
  ASSERT_EQ(losses.size(), kSteps);
  EXPECT_NE(losses, PlainLosses()) << "another model";
  EXPECT_LT(losses.back(), losses.front());
  ExpectNear(TrainAndReadLosses(1, kSteps, {"--static-graph"}), losses, 1e-4);
  ExpectNear(Losses({"--static-graph", "--accumulate=4"}), losses, 1e-4);
  EXPECT_EQ(Losses({"--static-graph", "--optimizer-in-backward", "--bucket-mb=0.001"}), losses);
}

TEST(TrainFlags, WrongUsageEndsBeforeAnythingStarts) {
  const Outcome combination = RunTrain({"--find-unused", "--static-graph"});
  EXPECT_EQ(combination.exit_status, 2);
  EXPECT_THAT(combination.err, ContainsRegex("--find-unused .*--static-graph.*; see --help"));
  const Outcome uneven = RunTrain({"--accumulate=3"});
  EXPECT_EQ(uneven.exit_status, 2);
  EXPECT_THAT(uneven.err, HasSubstr("128 images of a batch cannot be cut into 3 equal micro-batches"));
}

}  // namespace
}  // namespace fashion_mnist
