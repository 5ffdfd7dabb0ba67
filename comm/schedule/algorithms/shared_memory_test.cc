// What the shared-memory algorithms are for, counted. That they are right is proved in comm/schedule/verify/schedule_proofs_test.cc.

#include "absl/status/statusor.h"
#include "base/rank.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/schedule/verify/verifier.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

const int kSizes[] = {2, 3, 4, 5, 8, 17, 64};

bool IsOthers(const Operand& operand) { return operand.rank != Operand::kOwn; }

// Blocks of the vector that the rank reads and writes.
struct Traffic {
  int read = 0;
  int written = 0;
};
Traffic TrafficOf(const Schedule& schedule) {
  Traffic traffic;
  for (const Step& step : schedule.steps) {
    if (step.kind == Step::Kind::kBarrier || step.kind == Step::Kind::kShare) continue;
    traffic.read += static_cast<int>(step.terms.size()) + (step.kind == Step::Kind::kCopy ? 1 : 0);
    traffic.written += 1 + static_cast<int>(step.more_targets.size());
  }
  return traffic;
}

int Barriers(Collective collective, Algorithm algorithm, int size) {
  const absl::StatusOr<Proof> proof = Prove(BuildAll(collective, algorithm, size), /*in_place=*/true);
  LOCKSTEP_EXPECT_OK(proof);
  return proof.ok() ? proof->message_depth() : -1;
}

TEST(Direct, IsBetweenTwoBarriers) {
  for (Collective collective : AllCollectives()) {
    for (int size : kSizes) {
      if (collective == Collective::kBarrier) continue;
      EXPECT_EQ(Barriers(collective, Algorithm::kDirect, size), 2) << Name(collective);
      for (const Schedule& schedule : BuildAll(collective, Algorithm::kDirect, size)) {
        EXPECT_EQ(schedule.steps.front().kind, Step::Kind::kBarrier);
        EXPECT_EQ(schedule.steps.back().kind, Step::Kind::kBarrier);
        EXPECT_EQ(schedule.scratch_blocks, 0);
      }
    }
  }
}

TEST(Direct, ReadsEveryInputAndWritesEveryOutputOnce) {
  for (int size : kSizes) {
    for (const Schedule& schedule : BuildAll(Collective::kAllReduce, Algorithm::kDirect, size)) {
      EXPECT_EQ(TrafficOf(schedule).read, size);
      EXPECT_EQ(TrafficOf(schedule).written, size);
    }
    for (Collective collective : {Collective::kReduce, Collective::kReduceScatter}) {
      for (const Schedule& schedule : BuildAll(collective, Algorithm::kDirect, size, /*root=*/size - 1)) {
        EXPECT_EQ(TrafficOf(schedule).read, size);
        EXPECT_EQ(TrafficOf(schedule).written, 1);
      }
    }
    for (Collective collective : {Collective::kAllGather, Collective::kAllToAll}) {
      for (const Schedule& schedule : BuildAll(collective, Algorithm::kDirect, size)) {
        EXPECT_EQ(TrafficOf(schedule).written, size);
      }
    }
    for (Collective collective : {Collective::kBroadcast, Collective::kGather, Collective::kScatter}) {
      for (const Schedule& schedule : BuildAll(collective, Algorithm::kDirect, size)) {
        EXPECT_EQ(TrafficOf(schedule).written, 1);
      }
    }
  }
}

// At no time do all ranks read one rank's memory, as long as they are equally fast.
TEST(Direct, BeginsWithTheNextNeighbour) {
  for (Collective collective : {Collective::kAllGather, Collective::kAllToAll}) {
    for (const Schedule& schedule : BuildAll(collective, Algorithm::kDirect, 5)) {
      for (int distance = 1; distance < 5; ++distance) {
        EXPECT_EQ(schedule.steps[distance].source.rank, (schedule.rank.value() + distance) % 5);
      }
      EXPECT_FALSE(IsOthers(schedule.steps[5].source));
    }
  }
}

TEST(Inline, IsOneBarrierAndTouchesNoOthersMemory) {
  for (Collective collective : {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
                                Collective::kAllGather, Collective::kBarrier}) {
    for (int size : kSizes) {
      EXPECT_EQ(Barriers(collective, Algorithm::kInline, size), 1) << Name(collective);
      for (const Schedule& schedule : BuildAll(collective, Algorithm::kInline, size)) {
        for (const Step& step : schedule.steps) {
          EXPECT_FALSE(IsOthers(step.source) || IsOthers(step.target)) << ToString(schedule);
          for (const Operand& term : step.terms) EXPECT_FALSE(IsOthers(term)) << ToString(schedule);
          EXPECT_TRUE(step.more_targets.empty());
        }
      }
    }
  }
}

// Whatever an input is to be multiplied by, the folds may do it (comm/plan/call_plan.cc): nothing else reads an input to reduce
// it, and every fold reads all ranks'.
TEST(InSharedMemory, ReducesNothingButByFoldsOfAllRanks) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      if (!UsesSharedMemory(algorithm)) continue;
      EXPECT_TRUE(ReducesInRankOrder(collective, algorithm) && RoundsOnce(collective, algorithm))
          << Name(collective) << " by " << Name(algorithm);
      for (int size : kSizes) {
        for (const Schedule& schedule : BuildAll(collective, algorithm, size)) {
          for (const Step& step : schedule.steps) {
            if (step.kind != Step::Kind::kReduceMany) continue;
            EXPECT_EQ(static_cast<int>(step.terms.size()), size) << ToString(schedule);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
