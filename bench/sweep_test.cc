#include "bench/sweep.h"

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseByteCount, UnitsArePowersOf1024) {
  EXPECT_THAT(ParseByteCount("0"), IsOkAndHolds(0));
  EXPECT_THAT(ParseByteCount("8"), IsOkAndHolds(8));
  EXPECT_THAT(ParseByteCount("3k"), IsOkAndHolds(3072));
  EXPECT_THAT(ParseByteCount("64M"), IsOkAndHolds(int64_t{64} << 20));
  EXPECT_THAT(ParseByteCount("2G"), IsOkAndHolds(int64_t{2} << 30));
  EXPECT_THAT(ParseByteCount("1T"), IsOkAndHolds(int64_t{1} << 40));
}

TEST(ParseByteCount, RefusesWhatIsNoSize) {
  for (const char* text : {"", "M", "64MB", "-8", "+8", "1.5M", " 8", "8 ", "x"}) {
    EXPECT_THAT(ParseByteCount(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a number of bytes")))
        << text;
  }
  for (const char* text : {"9223372036854775808", "9007199254740992K", "8388608T"}) {
    EXPECT_THAT(ParseByteCount(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too large"))) << text;
  }
}

TEST(ByteCountText, IsTheShortestThatParsesBack) {
  EXPECT_EQ(ByteCountText(0), "0");
  EXPECT_EQ(ByteCountText(1000), "1000");
  EXPECT_EQ(ByteCountText(1024), "1K");
  EXPECT_EQ(ByteCountText(25 << 20), "25M");
  EXPECT_EQ(ByteCountText((25 << 20) + 4), "26214404");
  EXPECT_EQ(ByteCountText(int64_t{1} << 50), "1024T");
}

TEST(SweepSizes, ReachesTheEndWhenAPowerDoes) {
  EXPECT_THAT(SweepSizes(8, 512, 4), IsOkAndHolds(ElementsAre(8, 32, 128, 512)));
  EXPECT_THAT(SweepSizes(8, 500, 4), IsOkAndHolds(ElementsAre(8, 32, 128)));
  EXPECT_THAT(SweepSizes(8, 8, 2), IsOkAndHolds(ElementsAre(8)));
  EXPECT_THAT(SweepSizes(0, 4, 2), IsOkAndHolds(ElementsAre(0, 1, 2, 4)));
}

TEST(SweepSizes, EndsBeforeItOverflows) {
  const int64_t big = int64_t{1} << 62;
  EXPECT_THAT(SweepSizes(big, big + (big - 1), 2), IsOkAndHolds(ElementsAre(big)));
}

TEST(SweepSizes, RefusesWhatDoesNotEnd) {
  EXPECT_THAT(SweepSizes(-1, 8, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("below 0")));
  EXPECT_THAT(SweepSizes(16, 8, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("end at 8, before 16")));
  EXPECT_THAT(SweepSizes(8, 16, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("factor of 1")));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
