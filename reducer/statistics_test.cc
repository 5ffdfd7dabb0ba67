#include "reducer/statistics.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

StepTimer::Clock::time_point At(int milliseconds) {
  return StepTimer::Clock::time_point() + std::chrono::hours(1) + std::chrono::milliseconds(milliseconds);
}

TEST(StepTimer, IsZeroBeforeTheFirstStepEnds) {
  StepTimer timer;
  timer.Begin(At(0));
  timer.Launched();
  timer.Reduced(At(1), At(2), 100);
  EXPECT_EQ(timer.last().steps, 0);
  EXPECT_EQ(timer.last().bytes_reduced, 0);
  EXPECT_EQ(timer.last().communication_ms, 0);
}

TEST(StepTimer, TellsHiddenFromExposedCommunication) {
  StepTimer timer;
  timer.Begin(At(0));
  timer.Launched();
  timer.Reduced(At(10), At(30), 1000);  // in backward
  timer.Launched();
  timer.EndCalled(At(100));
  timer.Reduced(At(90), At(105), 200);  // across its end
  timer.Launched();
  timer.Reduced(At(110), At(140), 30);  // after it
  timer.End();
  const ReducerStatistics& last = timer.last();
  EXPECT_EQ(last.steps, 1);
  EXPECT_DOUBLE_EQ(last.backward_ms, 100);
  EXPECT_DOUBLE_EQ(last.communication_ms, 20 + 15 + 30);
  EXPECT_DOUBLE_EQ(last.exposed_ms, 5 + 30);
  EXPECT_DOUBLE_EQ(last.hidden_ms(), 30);
  EXPECT_EQ(last.bytes_reduced, 1230);
  EXPECT_EQ(last.buckets, 3);
  EXPECT_EQ(last.buckets_launched_in_backward, 2);
}

TEST(StepTimer, ABucketThatEndsWithBackwardIsHidden) {
  StepTimer timer;
  timer.Begin(At(0));
  timer.Launched();
  timer.Reduced(At(1), At(4), 8);
  timer.EndCalled(At(4));
  timer.End();
  EXPECT_EQ(timer.last().exposed_ms, 0);
  EXPECT_DOUBLE_EQ(timer.last().hidden_ms(), 3);
}

TEST(StepTimer, EveryStepStartsAnew) {
  StepTimer timer;
  for (int step = 0; step < 3; ++step) {
    timer.Begin(At(1000 * step));
    timer.Launched();
    timer.Reduced(At(1000 * step + 1), At(1000 * step + 2 + step), 10);
    timer.EndCalled(At(1000 * step + 7));
    timer.End();
    EXPECT_EQ(timer.last().steps, step + 1);
    EXPECT_DOUBLE_EQ(timer.last().communication_ms, 1 + step);
    EXPECT_DOUBLE_EQ(timer.last().backward_ms, 7);
    EXPECT_EQ(timer.last().bytes_reduced, 10);
    EXPECT_EQ(timer.last().buckets, 1);
    EXPECT_EQ(timer.last().buckets_launched_in_backward, 1);
  }
}

TEST(StepTimer, KeepsTheLastStepWhileTheNextOneRuns) {
  StepTimer timer;
  timer.Begin(At(0));
  timer.Launched();
  timer.Reduced(At(0), At(5), 64);
  timer.EndCalled(At(6));
  timer.End();
  timer.Begin(At(10));
  timer.Launched();
  timer.Launched();
  EXPECT_EQ(timer.last().buckets, 1);
  EXPECT_EQ(timer.last().bytes_reduced, 64);
}

}  // namespace
}  // namespace lockstep
