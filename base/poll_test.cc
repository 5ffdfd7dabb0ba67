#include "base/poll.h"

#include "base/deadline.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

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
