#include "base/check.h"

#include <csignal>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(CheckTest, TrueConditionEvaluatesOnceAndStreamsNothing) {
  int evaluated = 0;
  int streamed = 0;
  LOCKSTEP_CHECK(++evaluated == 1) << ++streamed;
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(streamed, 0);
}

TEST(CheckTest, IsOneStatement) {
  bool reached_else = false;
  if (false)
    LOCKSTEP_CHECK(true);
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

TEST(CheckDeathTest, FalseConditionAbortsWithPlaceConditionAndText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int slot = 7;
  EXPECT_DEATH(LOCKSTEP_CHECK(slot < 5) << "slot " << slot << " of " << 5,
               "base/check_test\\.cc:[0-9]+: check failed: slot < 5 slot 7 of 5");
}

TEST(CheckDeathTest, AbortsWithoutText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(LOCKSTEP_CHECK(1 == 2), testing::KilledBySignal(SIGABRT), "check failed: 1 == 2");
}

}  // namespace
}  // namespace lockstep
