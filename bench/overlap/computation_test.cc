#include "bench/overlap/computation.h"

#include <chrono>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Two parameters, of which the first one's gradient costs nothing.
ComputePlan SmallPlan() {
  ComputePlan plan;
  plan.forward_seconds = 0.001;
  plan.backward_seconds = {0, 0.002};
  return plan;
}

TEST(ComputeKind, IsReadAsItIsNamed) {
  for (const ComputeKind kind : {ComputeKind::kBusy, ComputeKind::kAway, ComputeKind::kStream, ComputeKind::kMatmul}) {
    EXPECT_THAT(ParseComputeKind(Name(kind)), IsOkAndHolds(kind));
  }
  EXPECT_THAT(ParseComputeKind("idle"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("busy, away, stream, matmul")));
}

TEST(BusyComputation, WritesAGradientWhenItIsComputed) {
  std::vector<float> first(3);
  std::vector<float> second(5);
  const std::unique_ptr<Computation> computation =
      MakeBusyComputation(SmallPlan(), 1000, {absl::MakeSpan(first), absl::MakeSpan(second)}, 2);
  // What the constructor tried out does not count.
  first = {0, 0, 0};
  second = {0, 0, 0, 0, 0};
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  EXPECT_THAT(second, Each(2));
  EXPECT_THAT(first, Each(0));
  computation->Backward(0);
  EXPECT_THAT(first, Each(2));
}

TEST(BusyComputation, CanBeCalibrated) { EXPECT_GT(CalibrateArithmetic(), 0); }

TEST(AwayComputation, IsDoneNoEarlierThanThePlanSays) {
  const std::unique_ptr<Computation> computation = MakeAwayComputation(SmallPlan(), {});
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1));
  computation->Backward(1);
  computation->Backward(0);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3));
}

// The first of the two is not waited for, and takes its time all the same.
TEST(AwayComputation, AwaitsThoseThatItIsTold) {
  const std::unique_ptr<Computation> computation = MakeAwayComputation(SmallPlan(), {true, false});
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  computation->Backward(0);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
