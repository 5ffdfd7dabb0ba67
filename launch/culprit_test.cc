#include "launch/culprit.h"

#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

RankOutcome Failed(int64_t time_ns, absl::optional<int> blames = absl::nullopt) {
  return {/*ended=*/true, /*failed=*/true, /*by_signal=*/false, time_ns, blames};
}
RankOutcome Killed(int64_t time_ns) { return {true, true, /*by_signal=*/true, time_ns, absl::nullopt}; }
const RankOutcome kRuns = {};
const RankOutcome kFinished = {/*ended=*/true, /*failed=*/false, /*by_signal=*/false, /*time_ns=*/1, absl::nullopt};

absl::optional<int> Culprit(const std::vector<RankOutcome>& ranks) { return FindCulprit(ranks); }

TEST(Culprit, IsTheRankThatBlamesNobodyHoweverLateItEnds) {
  EXPECT_EQ(Culprit({Failed(1, 1), Failed(9), Failed(2, 0), Failed(3, 1)}), 1);
}

TEST(Culprit, MayStillRun) { EXPECT_EQ(Culprit({kRuns, Failed(1, 2), kRuns, kRuns}), 2); }

TEST(Culprit, IsNoRankThatFinished) { EXPECT_EQ(Culprit({Failed(5, 1), kFinished, Failed(6, 1)}), 0); }

TEST(Culprit, IsNobodyIfNoneFailed) {
  EXPECT_EQ(Culprit({kFinished, kRuns}), absl::nullopt);
  EXPECT_EQ(Culprit({}), absl::nullopt);
}

TEST(Culprit, OfSeveralDiedByASignalOrIsBlamedMostOrWasFirst) {
  EXPECT_EQ(Culprit({Failed(1), Killed(2), Failed(3, 0), Failed(4, 0)}), 1);
  EXPECT_EQ(Culprit({Failed(1), Failed(2), Failed(3, 1)}), 1);
  EXPECT_EQ(Culprit({Failed(3), Failed(1), Failed(2)}), 1);
}

TEST(Culprit, OfACircleIsTheEarliest) {
  EXPECT_EQ(Culprit({Failed(5, 1), Failed(3, 2), Failed(4, 1), Failed(1, 0)}), 1);
  EXPECT_EQ(Culprit({Failed(5, 0), Failed(6, 0)}), 0) << "a rank that blames itself blames nobody";
}

TEST(Culprit, IgnoresBlameOfARankThatDoesNotExist) { EXPECT_EQ(Culprit({Failed(1, 7), Failed(2, -1)}), 0); }

}  // namespace
}  // namespace lockstep
