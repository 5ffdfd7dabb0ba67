#include "comm/schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "comm/verifier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSizeMax = 64;
// For what is counted rather than proved.
const int kSizes[] = {2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64};

std::vector<Schedule> BuildAll(Collective collective, Algorithm algorithm, int size, int root = 0) {
  std::vector<Schedule> all;
  for (int rank = 0; rank < size; ++rank) {
    absl::StatusOr<Schedule> schedule = BuildSchedule(collective, algorithm, Rank(rank), size, Rank(root));
    LOCKSTEP_EXPECT_OK(schedule);
    if (schedule.ok()) all.push_back(*std::move(schedule));
  }
  return all;
}

int Count(const Schedule& schedule, Step::Kind kind) {
  return std::count_if(schedule.steps.begin(), schedule.steps.end(),
                       [kind](const Step& step) { return step.kind == kind; });
}
int Sends(const Schedule& schedule) { return Count(schedule, Step::Kind::kSend); }
int Receives(const Schedule& schedule) {
  return Count(schedule, Step::Kind::kReceive) + Count(schedule, Step::Kind::kReceiveReduce);
}

int FloorLog2(int size) {
  int log = 0;
  while (2 << log <= size) ++log;
  return log;
}
int CeilLog2(int size) { return (1 << FloorLog2(size)) == size ? FloorLog2(size) : FloorLog2(size) + 1; }

// The proof of all schedules that this library makes: every collective, every algorithm, in place and out of place.
// Every root up to 17 ranks; above, roots at the ends, in the middle and next to powers of two, since a schedule
// depends on its root only through the distance from it.
class ShippedSchedules : public ::testing::TestWithParam<Collective> {};

TEST_P(ShippedSchedules, AreProved) {
  const Collective collective = GetParam();
  for (Algorithm algorithm : AlgorithmsFor(collective)) {
    for (int size = 1; size <= kSizeMax; ++size) {
      std::vector<int> roots = {0};
      if (HasRoot(collective)) {
        roots = {0, 1, size / 2, 31, 32, size - 1};
        if (size <= 17) {
          roots.clear();
          for (int root = 0; root < size; ++root) roots.push_back(root);
        }
      }
      for (int root : roots) {
        if (root >= size) continue;
        const std::vector<Schedule> all = BuildAll(collective, algorithm, size, root);
        for (bool in_place : {false, true}) {
          LOCKSTEP_ASSERT_OK(Verify(all, in_place))
              << Name(algorithm) << ", " << size << " ranks, root " << root << (in_place ? ", in place" : "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, ShippedSchedules,
                         ::testing::Values(Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                           Collective::kAllGather, Collective::kReduceScatter, Collective::kBarrier),
                         [](const auto& info) { return Name(info.param); });

// Sets of ranks take more than one word.
TEST(ShippedSchedulesOfLargeWorlds, AreProved) {
  for (int size : {65, 130}) {
    for (int index = 0; index < kCollectiveCount; ++index) {
      const Collective collective = static_cast<Collective>(index);
      for (Algorithm algorithm : AlgorithmsFor(collective)) {
        LOCKSTEP_ASSERT_OK(Verify(BuildAll(collective, algorithm, size), /*in_place=*/true))
            << Name(collective) << " " << Name(algorithm) << ", " << size;
      }
    }
  }
}

TEST(Schedule, OfOneRankIsACopyOrNothing) {
  for (int index = 0; index < kCollectiveCount; ++index) {
    const Collective collective = static_cast<Collective>(index);
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(collective, algorithm, Rank(0), 1, Rank(0)));
      EXPECT_EQ(schedule.steps.size(), collective == Collective::kBarrier ? 0 : 1);
      for (const Step& step : schedule.steps) EXPECT_EQ(step.kind, Step::Kind::kCopy);
      EXPECT_EQ(schedule.scratch_blocks, 0);
    }
  }
}

TEST(RingAllReduce, TakesTwiceTheRanksLessOneRoundsOfOneBlock) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kRing, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(schedule.scratch_blocks, 0);
      ASSERT_EQ(Sends(schedule), 2 * (size - 1));
      ASSERT_EQ(Count(schedule, Step::Kind::kReceiveReduce), size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kReceive), size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kCopy), 0) << "out of place needs no copy beforehand";
      const Rank right((schedule.rank.value() + 1) % size), left((schedule.rank.value() + size - 1) % size);
      for (const Step& step : schedule.steps) {
        ASSERT_EQ(step.peer, step.kind == Step::Kind::kSend ? right : left);
        ASSERT_EQ(step.source.blocks + step.target.blocks, step.kind == Step::Kind::kReceiveReduce ? 2 : 1);
      }
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/false));
    ASSERT_EQ(proof.message_depth(), 2 * (size - 1));
  }
}

// What lets the executor overlap the rounds chunk by chunk.
TEST(RingAllReduce, SendsOnExactlyTheOperandThatArrivedLast) {
  for (int rank = 0; rank < 5; ++rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                  BuildSchedule(Collective::kAllReduce, Algorithm::kRing, Rank(rank), 5, Rank(0)));
    for (size_t index = 1; index < schedule.steps.size(); ++index) {
      const Step& step = schedule.steps[index];
      if (step.kind != Step::Kind::kSend) continue;
      ASSERT_EQ(step.after[0], static_cast<int32_t>(index) - 1);
      ASSERT_EQ(step.source, schedule.steps[index - 1].target);
    }
  }
}

TEST(RingAllReduce, FoldsEachBlockInRingOrderFromItsOwner) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof,
                                Prove(BuildAll(Collective::kAllReduce, Algorithm::kRing, 4), /*in_place=*/false));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(proof.Expression(Rank(rank), 0), "(r3+(r2+(r1+r0)))");
    EXPECT_EQ(proof.Expression(Rank(rank), 2), "(r1+(r0+(r3+r2)))");
  }
}

TEST(RecursiveDoublingAllReduce, TakesLogarithmicallyManyRoundsAndTwoForRanksBeyondAPowerOfTwo) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllReduce, Algorithm::kRecursiveDoubling, size);
    const int rounds = FloorLog2(size), extra = size - (1 << rounds);
    for (const Schedule& schedule : all) {
      const int rank = schedule.rank.value();
      const bool is_folded = rank < 2 * extra && rank % 2 == 0, folds = rank < 2 * extra && rank % 2 == 1;
      ASSERT_EQ(Sends(schedule), is_folded ? 1 : rounds + (folds ? 1 : 0));
      ASSERT_EQ(Receives(schedule), is_folded ? 1 : rounds + (folds ? 1 : 0));
      ASSERT_EQ(schedule.blocks, 1);
      ASSERT_LE(schedule.scratch_blocks, 2);
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/true));
    ASSERT_EQ(proof.message_depth(), rounds + (extra > 0 ? 2 : 0));
  }
}

TEST(RecursiveDoublingAllReduce, CombinesNeighboursFirst) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Proof power, Prove(BuildAll(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 4), /*in_place=*/true));
  EXPECT_EQ(power.Expression(Rank(0), 0), "((r0+r1)+(r2+r3))");
  EXPECT_EQ(power.Expression(Rank(3), 0), "((r3+r2)+(r1+r0))");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Proof folded, Prove(BuildAll(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 6), /*in_place=*/true));
  EXPECT_EQ(folded.Expression(Rank(1), 0), "(((r1+r0)+(r3+r2))+(r4+r5))");
  EXPECT_EQ(folded.Expression(Rank(0), 0), folded.Expression(Rank(1), 0));
}

TEST(BinomialBroadcast, ReachesEveryoneInLogarithmicallyManyRounds) {
  for (int size : kSizes) {
    const int root = size / 3;
    const std::vector<Schedule> all = BuildAll(Collective::kBroadcast, Algorithm::kBinomial, size, root);
    int sends = 0;
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Receives(schedule), schedule.rank.value() == root ? 0 : 1);
      sends += Sends(schedule);
    }
    ASSERT_EQ(sends, size - 1);
    ASSERT_EQ(Sends(all[root]), CeilLog2(size));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/false));
    ASSERT_LE(proof.message_depth(), CeilLog2(size));
    ASSERT_EQ(proof.Expression(Rank(size - 1), 0), "r" + std::to_string(root));
  }
}

TEST(BinomialReduce, HasTheRootReceiveLogarithmicallyManyTimes) {
  for (int size : kSizes) {
    const int root = size - 1;
    const std::vector<Schedule> all = BuildAll(Collective::kReduce, Algorithm::kBinomial, size, root);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), schedule.rank.value() == root ? 0 : 1);
      ASSERT_LE(schedule.scratch_blocks, schedule.rank.value() == root ? 0 : 1);
    }
    ASSERT_EQ(Receives(all[root]), CeilLog2(size));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/true));
    ASSERT_EQ(proof.message_depth(), CeilLog2(size));
  }
}

TEST(BinomialReduce, SumsInOrderFromTheRoot) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Proof proof, Prove(BuildAll(Collective::kReduce, Algorithm::kBinomial, 5, /*root=*/1), /*in_place=*/false));
  EXPECT_EQ(proof.Expression(Rank(1), 0), "(((r1+r2)+(r3+r4))+r0)");
  EXPECT_EQ(proof.Expression(Rank(2), 0), "undefined");
}

TEST(RingReduce, IsAChainThatEndsAtTheRoot) {
  for (int size : kSizes) {
    const int root = size / 2;
    const std::vector<Schedule> all = BuildAll(Collective::kReduce, Algorithm::kRing, size, root);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(Sends(schedule), schedule.rank.value() == root ? 0 : 1);
      ASSERT_EQ(Receives(schedule), schedule.rank.value() == (root + 1) % size ? 0 : 1);
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/true));
    ASSERT_EQ(proof.message_depth(), size - 1);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(
      const Proof proof, Prove(BuildAll(Collective::kReduce, Algorithm::kRing, 4, /*root=*/3), /*in_place=*/true));
  EXPECT_EQ(proof.Expression(Rank(3), 0), "(r3+(r2+(r1+r0)))");
}

TEST(RingAllGather, TakesOneTurnOfTheRing) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kAllGather, Algorithm::kRing, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(Sends(schedule), size - 1);
      ASSERT_EQ(Receives(schedule), size - 1);
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/false));
    ASSERT_EQ(proof.message_depth(), size - 1);
    ASSERT_EQ(proof.Expression(Rank(0), size - 1), "r" + std::to_string(size - 1));
  }
}

TEST(RingReduceScatter, TakesOneTurnOfTheRingAndTwoBlocksOfScratch) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kReduceScatter, Algorithm::kRing, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, size);
      ASSERT_EQ(schedule.scratch_blocks, std::min(2, size - 2));
      ASSERT_EQ(Sends(schedule), size - 1);
      ASSERT_EQ(Count(schedule, Step::Kind::kReceiveReduce), size - 1);
      ASSERT_EQ(schedule.steps.size(), 2 * (size - 1));
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/true));
    ASSERT_EQ(proof.message_depth(), size - 1);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof,
                                Prove(BuildAll(Collective::kReduceScatter, Algorithm::kRing, 3), /*in_place=*/false));
  EXPECT_EQ(proof.Expression(Rank(0), 0), "(r0+(r2+r1))");
  EXPECT_EQ(proof.Expression(Rank(0), 1), "undefined");
}

TEST(DisseminationBarrier, TakesLogarithmicallyManyRoundsWithoutPayload) {
  for (int size : kSizes) {
    const std::vector<Schedule> all = BuildAll(Collective::kBarrier, Algorithm::kDissemination, size);
    for (const Schedule& schedule : all) {
      ASSERT_EQ(schedule.blocks, 0);
      ASSERT_EQ(Sends(schedule), CeilLog2(size));
      ASSERT_EQ(Receives(schedule), CeilLog2(size));
      for (const Step& step : schedule.steps) ASSERT_EQ(step.source.blocks + step.target.blocks, 0);
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/false));
    ASSERT_EQ(proof.message_depth(), CeilLog2(size));
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
            "#3 reduce output[0] = output[0] op scratch[0], after #1 #2\n");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule barrier,
                                BuildSchedule(Collective::kBarrier, Algorithm::kDissemination, Rank(0), 2, Rank(0)));
  EXPECT_THAT(ToString(barrier), HasSubstr("#0 send nothing to rank 1\n"));
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
  EXPECT_THAT(ParseAlgorithm("tree"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unknown algorithm 'tree'; known are auto, ring, recursive_doubling")));
  EXPECT_THAT(AlgorithmsFor(Collective::kAllReduce), ElementsAre(Algorithm::kRecursiveDoubling, Algorithm::kRing));
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

TEST(BuildSchedule, RefusesRanksAndRootsOutsideTheWorld) {
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
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Schedule rootless,
                                BuildSchedule(Collective::kAllReduce, Algorithm::kRing, Rank(0), 2, Rank(9)));
  EXPECT_EQ(rootless.root, Rank(0));
}

}  // namespace
}  // namespace lockstep
