#include "base/default_floats.h"

#include <cfenv>
#include <limits>

#include "base/thread.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// 1 + this is rounded up, unless the mode is the default one.
float SumRoundedUp() {
  volatile float one = 1;
  volatile float little = std::numeric_limits<float>::epsilon() / 8;
  return one + little;
}

TEST(DefaultFloats, LastAsLongAsOneLivesAndInOurThreads) {
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  EXPECT_GT(SumRoundedUp(), 1);
  {
    const DefaultFloats inside;
    EXPECT_EQ(SumRoundedUp(), 1);
  }
  EXPECT_GT(SumRoundedUp(), 1);
  float in_thread = 0;
  Thread("lockstep-test", [&in_thread] { in_thread = SumRoundedUp(); }).Join();
  EXPECT_EQ(in_thread, 1);
  EXPECT_EQ(std::fesetround(FE_TONEAREST), 0);
}

}  // namespace
}  // namespace lockstep
