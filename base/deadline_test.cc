#include "base/deadline.h"

#include <chrono>
#include <limits>

#include "base/poll.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(DeadlineTest, NowHasPassedAndInfiniteNeverDoes) {
  EXPECT_TRUE(Deadline::Now().passed());
  EXPECT_EQ(Deadline::Now().remaining_ms(), 0);
  EXPECT_FALSE(Deadline::Infinite().passed());
  EXPECT_EQ(Deadline::Infinite().remaining_ms(), -1);
}

TEST(DeadlineTest, RemainingTimeIsRoundedUp) {
  const Deadline deadline = Deadline::After(hours(1));
  const int remaining_ms = deadline.remaining_ms();
  EXPECT_LE(remaining_ms, 3600 * 1000);
  EXPECT_GE(nanoseconds(milliseconds(remaining_ms)), deadline.time() - Deadline::Clock::now());
  const Deadline soon = Deadline::After(nanoseconds(1));
  // Either it has passed by now, or what is left counts as a whole millisecond: a poll never spins on a zero.
  const int left = soon.remaining_ms();
  EXPECT_TRUE(left == 1 || soon.passed()) << left;
}

TEST(DeadlineTest, LongDurationsFitPollsArgument) {
  EXPECT_EQ(Deadline::After(hours(24 * 365)).remaining_ms(), std::numeric_limits<int>::max());
}

TEST(DeadlineTest, DurationsBeyondTheClockAreInfinite) {
  EXPECT_TRUE(Deadline::After(nanoseconds::max()).infinite());
  EXPECT_TRUE(Deadline::AfterMs(std::numeric_limits<int64_t>::max()).infinite());
}

TEST(DeadlineTest, NegativeDurationsHavePassed) {
  EXPECT_TRUE(Deadline::After(nanoseconds(-1)).passed());
  EXPECT_TRUE(Deadline::After(nanoseconds::min()).passed());
  EXPECT_TRUE(Deadline::AfterMs(0).passed());
  EXPECT_TRUE(Deadline::AfterMs(std::numeric_limits<int64_t>::min()).passed());
}

TEST(DeadlineTest, EarlierPicksTheEarlier) {
  const Deadline hour = Deadline::After(hours(1));
  EXPECT_EQ(Deadline::Earlier(hour, Deadline::Infinite()).time(), hour.time());
  EXPECT_EQ(Deadline::Earlier(Deadline::Now(), hour).time(), Deadline::Now().time());
}

TEST(PollUntilTest, LooksOnceThoughTheDeadlineHasPassed) {
  int looked = 0;
  EXPECT_TRUE(PollUntil(Deadline::Now(), [&] { return ++looked == 1; }));
  EXPECT_FALSE(PollUntil(Deadline::Now(), [&] { return ++looked == 1; }));
  EXPECT_EQ(looked, 2);
}

TEST(PollUntilTest, LooksUntilItIsReached) {
  int looked = 0;
  EXPECT_TRUE(PollUntil(Deadline::AfterMs(20000), [&] { return ++looked == 200; }));
  EXPECT_EQ(looked, 200);
}

TEST(PollUntilTest, EndsAtItsDeadline) {
  EXPECT_FALSE(PollUntil(Deadline::AfterMs(2), [] { return false; }));
}

}  // namespace
}  // namespace lockstep
