#include "comm/schedule/schedule.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Schedule, OfOneRankIsACopyOrNothing) {
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(collective, algorithm, Rank(0), 1, Rank(0)));
      EXPECT_EQ(schedule.steps.size(), collective == Collective::kBarrier ? 0 : 1);
      for (const Step& step : schedule.steps) EXPECT_EQ(step.kind, Step::Kind::kCopy);
      EXPECT_EQ(schedule.scratch_blocks, 0);
    }
  }
}

TEST(Schedule, PrintsOneLineForEachStep) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule ring,
                                BuildSchedule(Collective::kAllReduce, Algorithm::kRing, Rank(1), 3, Rank(0)));
  EXPECT_EQ(ToString(ring),
            "all_reduce ring, rank 1 of 3, 3 blocks, 0 of scratch\n"
            "#0 send input[1] to rank 2\n"
            "#1 receive_reduce from rank 0: output[0] = input[0] op arriving\n"
            "#2 send output[0] to rank 2, after #1\n"
            "#3 receive_reduce from rank 0: output[2] = input[2] op arriving\n"
            "#4 send output[2] to rank 2, after #3\n"
            "#5 receive output[1] from rank 0, after #0\n"
            "#6 send output[1] to rank 2, after #5\n"
            "#7 receive output[0] from rank 0, after #2\n");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Schedule pair, BuildSchedule(Collective::kAllReduce, Algorithm::kRecursiveDoubling, Rank(0), 2, Rank(0)));
  EXPECT_EQ(ToString(pair),
            "all_reduce recursive_doubling, rank 0 of 2, 1 blocks, 1 of scratch\n"
            "#0 copy output[0] = input[0]\n"
            "#1 send output[0] to rank 1, after #0\n"
            "#2 receive scratch[0] from rank 1\n"
            "#3 reduce_many output[0] = output[0] op scratch[0], after #1 #2\n");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule barrier,
                                BuildSchedule(Collective::kBarrier, Algorithm::kDissemination, Rank(0), 2, Rank(0)));
  EXPECT_THAT(ToString(barrier), HasSubstr("#0 send nothing to rank 1\n"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule direct,
                                BuildSchedule(Collective::kReduceScatter, Algorithm::kOneShot, Rank(1), 3, Rank(0)));
  EXPECT_THAT(ToString(direct), HasSubstr("#2 receive scratch[0] for [1] from rank 0\n"
                                          "#3 receive scratch[1] for [1] from rank 2\n"
                                          "#4 reduce_many output[1] = scratch[0] for [1] op input[1] op scratch[1] for "
                                          "[1], after #2 #3\n"));
  Step two_blocks;
  two_blocks.kind = Step::Kind::kSend;
  two_blocks.source = {Window::kInput, 2, 3};
  EXPECT_EQ(ToString(two_blocks), "send input[2..4] to rank 0");
}

TEST(Schedule, NamesEveryCollectiveAndAlgorithm) {
  EXPECT_EQ(Name(Collective::kReduceScatter), "reduce_scatter");
  EXPECT_EQ(Name(static_cast<Collective>(99)), "collective 99");
  EXPECT_FALSE(IsValid(static_cast<Collective>(kCollectiveCount)));
  for (int index = 0; index < kAlgorithmCount; ++index) {
    const Algorithm algorithm = static_cast<Algorithm>(index);
    EXPECT_THAT(ParseAlgorithm(Name(algorithm)), IsOkAndHolds(algorithm));
  }
  EXPECT_THAT(ParseAlgorithm("one_pass"), IsOkAndHolds(Algorithm::kDirect));
  EXPECT_THAT(ParseAlgorithm("one_line"), IsOkAndHolds(Algorithm::kInline));
  EXPECT_THAT(ParseAlgorithm("tree"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unknown algorithm 'tree'; known are auto, ring, recursive_doubling")));
}

// These among others, in this order: the selector takes the first of those that cost the same.
TEST(Schedule, ListsTheAlgorithmsOfEveryCollective) {
  static const char* const kKnown[] = {"recursive_doubling",
                                       "ring",
                                       "halving_doubling",
                                       "one_shot",
                                       "two_shot",
                                       "chain",
                                       "linear",
                                       "two_level",
                                       "binomial",
                                       "bruck",
                                       "scatter_all_gather",
                                       "direct",
                                       "inline",
                                       "staged",
                                       "staged_two_shot",
                                       "dissemination",
                                       "pairwise"};
  EXPECT_LE(std::size(kKnown) + 1, kAlgorithmCount);
  const auto names = [](Collective collective) {
    std::vector<std::string> found;
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      if (std::count(std::begin(kKnown), std::end(kKnown), Name(algorithm)) != 0) found.push_back(Name(algorithm));
    }
    return found;
  };
  EXPECT_THAT(names(Collective::kAllReduce),
              ElementsAre("recursive_doubling", "ring", "halving_doubling", "one_shot", "two_shot", "chain",
                          "two_level", "direct", "inline", "staged", "staged_two_shot"));
  EXPECT_THAT(names(Collective::kBroadcast),
              ElementsAre("binomial", "chain", "scatter_all_gather", "two_level", "direct", "inline"));
  EXPECT_THAT(names(Collective::kReduce), ElementsAre("binomial", "ring", "one_shot", "chain", "direct", "inline"));
  EXPECT_THAT(names(Collective::kAllGather),
              ElementsAre("ring", "one_shot", "bruck", "two_level", "direct", "inline", "staged"));
  EXPECT_THAT(names(Collective::kReduceScatter),
              ElementsAre("ring", "halving_doubling", "one_shot", "two_level", "direct", "staged"));
  EXPECT_THAT(names(Collective::kBarrier), ElementsAre("dissemination", "inline"));
  EXPECT_THAT(names(Collective::kGather), ElementsAre("linear", "binomial", "direct"));
  EXPECT_THAT(names(Collective::kScatter), ElementsAre("linear", "binomial", "direct"));
  EXPECT_THAT(names(Collective::kAllToAll), ElementsAre("pairwise", "bruck", "direct", "staged"));
}

TEST(Schedule, PrintsWhoseWindowAnOperandIsIn) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule pass,
                                BuildSchedule(Collective::kAllReduce, Algorithm::kDirect, Rank(1), 3, Rank(0)));
  EXPECT_EQ(ToString(pass),
            "all_reduce direct, rank 1 of 3, 3 blocks, 0 of scratch\n"
            "#0 barrier\n"
            "#1 reduce_many output[1], rank 2's output[1], rank 0's output[1] = rank 0's input[1] op input[1] op rank "
            "2's input[1]\n"
            "#2 barrier\n");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule line,
                                BuildSchedule(Collective::kBroadcast, Algorithm::kInline, Rank(1), 3, Rank(2)));
  EXPECT_EQ(ToString(line),
            "broadcast inline, rank 1 of 3, root 2, 1 blocks, 3 of scratch\n"
            "#0 share nothing: scratch[0..2] = everyone's\n"
            "#1 copy output[0] = scratch[2]\n");
  EXPECT_FALSE((Operand{Window::kInput, 1, 1} == Operand{Window::kInput, 1, 1, 0, /*rank=*/2}));
}

// A window that is the rank's own block begins there: in shared memory its offset depends on whose it is.
TEST(Schedule, KnowsWhichWindowsAreOneBlock) {
  for (Collective collective : AllCollectives()) {
    const bool gathers = collective == Collective::kAllGather || collective == Collective::kGather;
    const bool scatters = collective == Collective::kReduceScatter || collective == Collective::kScatter;
    EXPECT_EQ(IsOwnBlock(collective, Window::kInput), gathers) << Name(collective);
    EXPECT_EQ(IsOwnBlock(collective, Window::kOutput), scatters) << Name(collective);
    EXPECT_FALSE(IsOwnBlock(collective, Window::kScratch)) << Name(collective);
  }
}

// The v-forms have a choice everywhere: one algorithm of each collective takes any layout.
TEST(Schedule, HasAnAlgorithmForUnequalBlocksOfEveryCollective) {
  for (Collective collective : AllCollectives()) {
    if (!IsByRank(collective)) continue;
    EXPECT_FALSE(NeedsEqualBlocks(collective, AlgorithmsFor(collective)[0])) << Name(collective);
  }
  EXPECT_TRUE(NeedsEqualBlocks(Collective::kAllToAll, Algorithm::kBruck));
  EXPECT_TRUE(NeedsEqualBlocks(Collective::kAllToAll, Algorithm::kDirect)) << "where is its block in a peer's input?";
  EXPECT_FALSE(NeedsEqualBlocks(Collective::kAllGather, Algorithm::kBruck));
  EXPECT_FALSE(NeedsEqualBlocks(Collective::kBarrier, Algorithm::kRing)) << "not carried out at all";
}

TEST(BuildSchedule, RefusesAnAlgorithmThatDoesNotCarryOutTheCollective) {
  EXPECT_THAT(BuildSchedule(Collective::kAllReduce, Algorithm::kBinomial, Rank(0), 2, Rank(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("binomial does not carry out all_reduce"),
                                                                 HasSubstr("recursive_doubling, ring"))));
  EXPECT_THAT(BuildSchedule(Collective::kBarrier, Algorithm::kAuto, Rank(0), 1, Rank(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("auto does not carry out barrier")));
  EXPECT_THAT(BuildSchedule(static_cast<Collective>(77), Algorithm::kRing, Rank(0), 2, Rank(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown collective 77")));
}

TEST(CheckAlgorithm, ListsThoseThatCarryOutTheCollective) {
  EXPECT_THAT(CheckAlgorithm(Collective::kBroadcast, Algorithm::kAuto), IsOk());
  EXPECT_THAT(CheckAlgorithm(Collective::kBroadcast, Algorithm::kBinomial), IsOk());
  EXPECT_THAT(CheckAlgorithm(Collective::kBroadcast, Algorithm::kTwoShot),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("two_shot does not carry out broadcast; known are binomial, chain, ")));
}

TEST(BuildSchedule, RefusesRanksRootsAndTopologiesOutsideTheWorld) {
  for (const int rank : {-1, 3}) {
    EXPECT_THAT(
        BuildSchedule(Collective::kBroadcast, Algorithm::kBinomial, Rank(rank), 3, Rank(0)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank " + std::to_string(rank) + " is outside")));
    EXPECT_THAT(
        BuildSchedule(Collective::kBroadcast, Algorithm::kBinomial, Rank(0), 3, Rank(rank)),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("root " + std::to_string(rank) + " is outside")));
  }
  EXPECT_THAT(BuildSchedule(Collective::kBarrier, Algorithm::kDissemination, Rank(0), 0, Rank(0)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a world of 0")));
  EXPECT_THAT(
      BuildSchedule(Collective::kAllReduce, Algorithm::kTwoLevel, Rank(0), 4, Rank(0), Consecutive(3, 2)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the topology is of 3 ranks, and the world of 4")));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule rootless,
                                BuildSchedule(Collective::kAllReduce, Algorithm::kRing, Rank(0), 2, Rank(9)));
  EXPECT_EQ(rootless.root, Rank(0));
}

}  // namespace
}  // namespace lockstep
