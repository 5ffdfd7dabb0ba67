#include "bench/compare_result.h"

#include <utility>

#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

ContenderResult Made(ContenderKind kind, std::vector<double> seconds) {
  ContenderResult result;
  result.kind = kind;
  result.trials.resize(1);
  result.trials[0].seconds = std::move(seconds);
  return result;
}

TEST(RatioOf, IsTakenRoundByRound) {
  const ContenderResult subject = Made(ContenderKind::kLockstep, {2, 30, 4});
  const ContenderResult other = Made(ContenderKind::kPeer, {1, 10, 4});
  const absl::optional<Quartiles> ratio = RatioOf(subject, other, 0);
  ASSERT_TRUE(ratio.has_value());
  EXPECT_DOUBLE_EQ(ratio->median, 2);
  EXPECT_DOUBLE_EQ(ratio->low, 1.5);
  EXPECT_DOUBLE_EQ(ratio->high, 2.5);
}

TEST(RatioOf, LeavesOutTheRoundsThatOneOfThemDidNotSee) {
  const ContenderResult subject = Made(ContenderKind::kLockstep, {2, 2, 2});
  const ContenderResult dropped = Made(ContenderKind::kPeer, {1});
  ASSERT_TRUE(RatioOf(subject, dropped, 0).has_value());
  EXPECT_DOUBLE_EQ(RatioOf(subject, dropped, 0)->high, 2);
  EXPECT_FALSE(RatioOf(subject, Made(ContenderKind::kPeer, {}), 0).has_value());
  EXPECT_FALSE(MedianSeconds(Made(ContenderKind::kPeer, {}), 0).has_value());
}

TEST(FastestPeer, IsAPeerAndHasTimes) {
  ContestResult contest;
  contest.sizes = {8};
  EXPECT_EQ(FastestPeer(contest, 0), nullptr);
  contest.contenders = {Made(ContenderKind::kLockstep, {1}), Made(ContenderKind::kLimit, {0.5}),
                        Made(ContenderKind::kPeer, {4}), Made(ContenderKind::kPeer, {3}),
                        Made(ContenderKind::kPeer, {})};
  EXPECT_EQ(FastestPeer(contest, 0), &contest.contenders[3]);
}

TEST(BusBandwidth, IsThatOfAllReduce) {
  EXPECT_DOUBLE_EQ(BusBandwidth(1'000'000'000, 2, 1), 1);
  EXPECT_DOUBLE_EQ(BusBandwidth(1'000'000'000, 4, 1), 1.5);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
