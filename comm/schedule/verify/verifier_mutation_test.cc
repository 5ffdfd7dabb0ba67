// What the verifier makes of the library's own schedules when one thing in them is changed. That they are proved as they
// are is in schedule_proofs_test.cc.

#include "comm/schedule/verify/verifier.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::schedule_testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

using Schedules = std::vector<Schedule>;

Schedules ProvedRing(int size) {
  Schedules all = BuildAll(Collective::kAllReduce, Algorithm::kRing, size);
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/false));
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/true));
  return all;
}

TEST(Verifier, RefusesADroppedSend) {
  Schedules all = ProvedRing(4);
  Drop(&all[1], 0);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 2, step #"),
                                                            HasSubstr("waits for a message that is never sent"),
                                                            HasSubstr("5 messages are sent that way and 6 received"))));
}

TEST(Verifier, RefusesADroppedReceive) {
  Schedules all = ProvedRing(4);
  Drop(&all[1], static_cast<int>(all[1].steps.size()) - 1);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 0, step #"),
                                                            HasSubstr("sends a message that is never received"))));
}

TEST(Verifier, RefusesADroppedCopy) {
  Schedules all = BuildAll(Collective::kAllGather, Algorithm::kRing, 3);
  ASSERT_EQ(all[1].steps[2].kind, Step::Kind::kCopy);
  Drop(&all[1], 2);
  EXPECT_THAT(Verify(all, false), IsFault("rank 1: output[1] is never written"));
  // The copy is only for this case.
  LOCKSTEP_EXPECT_OK(Verify(all, true));
}

TEST(Verifier, RefusesALeftoverMessage) {
  Schedules all = ProvedRing(4);
  all[3].steps.push_back(Send(Input(0), 1));
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 3, step #12 (send input[0] to rank 1)"),
                                                            HasSubstr("sends a message that is never received"),
                                                            HasSubstr("1 messages are sent that way and 0 received"))));
}

TEST(Verifier, RefusesALostMessageOfAnyCollective) {
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      const Schedules whole = BuildAll(collective, algorithm, 5, /*root=*/2, Consecutive(5, 2));
      for (int rank = 0; rank < 5; ++rank) {
        for (size_t step = 0; step < whole[rank].steps.size(); ++step) {
          const Step::Kind kind = whole[rank].steps[step].kind;
          if (kind != Step::Kind::kSend && kind != Step::Kind::kReceive && kind != Step::Kind::kReceiveReduce) continue;
          Schedules all = whole;
          Drop(&all[rank], static_cast<int>(step));
          EXPECT_THAT(Verify(all, false).code(), kInternal) << "without #" << step << " of\n" << ToString(whole[rank]);
        }
      }
    }
  }
}

TEST(Verifier, RefusesSwappedPeers) {
  Schedules all = ProvedRing(4);
  all[2].steps[0].peer = Rank(1);
  EXPECT_THAT(Verify(all, false), IsFault("message that is never"));
  // Swapped so that every message still finds a match: the contributions go the wrong way.
  Schedules tree = BuildAll(Collective::kBroadcast, Algorithm::kBinomial, 4);
  ASSERT_EQ(tree[0].steps[0].peer, Rank(2));
  std::swap(tree[0].steps[0].peer, tree[0].steps[1].peer);
  LOCKSTEP_EXPECT_OK(Verify(tree, false)) << "two sends of the same block may be in either order";
  Schedules gather = BuildAll(Collective::kAllGather, Algorithm::kRing, 4);
  for (Schedule& schedule : gather) {
    for (Step& step : schedule.steps) {
      if (step.kind == Step::Kind::kSend) step.peer = Rank((schedule.rank.value() + 3) % 4);
      if (step.kind == Step::Kind::kReceive) step.peer = Rank((schedule.rank.value() + 1) % 4);
    }
  }
  EXPECT_THAT(Verify(gather, false), IsFault("rank 3, step #1 (receive output[2] from rank 0) writes block 0 where "
                                             "block 2 belongs, which may be smaller"));
}

// The canonical test of the race check: every `after` of every shipped schedule is needed by some mode,
// or the verifier does not see what it is for.
TEST(Verifier, RefusesAnyScheduleWithoutOneOfItsAfters) {
  for (int index = 0; index < kCollectiveCount; ++index) {
    const Collective collective = static_cast<Collective>(index);
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      for (int size : {2, 3, 4, 5, 8, 11}) {
        const Schedules whole = BuildAll(collective, algorithm, size, /*root=*/0, Consecutive(size, 3));
        for (int rank = 0; rank < size; ++rank) {
          for (size_t step = 0; step < whole[rank].steps.size(); ++step) {
            for (size_t k = 0; k < whole[rank].steps[step].after.size(); ++k) {
              // Leaving early takes all of a barrier's rounds to show: see below.
              if (collective == Collective::kBarrier) continue;
              Schedules all = whole;
              all[rank].steps[step].after.erase(all[rank].steps[step].after.begin() + k);
              const absl::Status out_of_place = Verify(all, false), in_place = Verify(all, true);
              EXPECT_THAT(out_of_place.ok() ? in_place : out_of_place, IsFault("races with step #"))
                  << "after[" << k << "] of step #" << step << " of\n"
                  << ToString(whole[rank]);
            }
          }
        }
      }
    }
  }
}

TEST(Verifier, NamesBothStepsOfARace) {
  Schedules all = ProvedRing(4);
  ASSERT_EQ(ToString(all[1].steps[2]), "send output[0] to rank 2, after #1");
  all[1].steps[2].after.clear();
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #2 (send output[0] to rank 2) races with step #1 "
                                                   "(receive_reduce from rank 0: output[0] = input[0] op arriving)"),
                                        HasSubstr("neither waits for the other"))));
}

TEST(Verifier, SeesRacesThatExistOnlyInPlace) {
  Schedules all = ProvedRing(4);
  // Block 1 of rank 1 leaves from the input, and comes back into the output.
  ASSERT_EQ(ToString(all[1].steps[7]), "receive output[1] from rank 0, after #0");
  all[1].steps[7].after.clear();
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/false));
  EXPECT_THAT(Verify(all, /*in_place=*/true), IsFault("races with step #0 (send input[1] to rank 2) in place"));
}

TEST(Verifier, RefusesAWrongBlock) {
  Schedules all = ProvedRing(4);
  all[1].steps[1].source.block = 3;
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 ("), HasSubstr("combines block 3 with block 0"))));
  all = ProvedRing(4);
  all[2].steps[0].source.block = 1;
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 3, step #1 ("), HasSubstr("combines block 2 with block 1"))));
  EXPECT_THAT(Verify(World(Collective::kBroadcast, 2, 0, {{Copy(Input(0), Output(1))}}), false),
              IsFault("writes block 0 where block 1 belongs, which may be smaller"));
}

// What the tests above do to an all-reduce, done to the collectives that only move blocks.
TEST(Verifier, RefusesAGatherThatMixesUpItsBlocks) {
  Schedules all = BuildAll(Collective::kGather, Algorithm::kLinear, 4, /*root=*/1);
  LOCKSTEP_EXPECT_OK(Verify(all, true));
  ASSERT_EQ(ToString(all[1].steps[0]), "receive output[2] from rank 2");
  std::swap(all[1].steps[0].target, all[1].steps[1].target);
  EXPECT_THAT(Verify(all, true), StatusIs(kInternal, AllOf(StartsWith("rank 1, step #"), HasSubstr("where block"))));
  // Where blocks are of one size the places would do, but not the result.
  all = BuildAll(Collective::kGather, Algorithm::kBinomial, 3);
  ASSERT_EQ(ToString(all[0].steps[2]), "receive output[2] from rank 2");
  std::swap(all[0].steps[1].target, all[0].steps[2].target);
  EXPECT_THAT(Verify(all, true), IsFault("rank 0: output[1] ends as r2 of block 2, not as block 1 of rank 1's input"));
}

TEST(Verifier, RefusesAScatterThatMixesUpItsBlocks) {
  Schedules all = BuildAll(Collective::kScatter, Algorithm::kLinear, 4, /*root=*/2);
  LOCKSTEP_EXPECT_OK(Verify(all, true));
  std::swap(all[2].steps[0].source, all[2].steps[1].source);
  EXPECT_THAT(Verify(all, true), IsFault("which may be smaller"));
  all = BuildAll(Collective::kScatter, Algorithm::kBinomial, 3);
  ASSERT_EQ(all[0].steps[0].kind, Step::Kind::kSend);
  std::swap(all[0].steps[0].source, all[0].steps[1].source);
  EXPECT_THAT(Verify(all, true), IsFault("rank 1: output[1] ends as r0 of block 2, not as block 1 of rank 0's input"));
}

TEST(Verifier, RefusesAnAllToAllThatMixesUpItsBlocks) {
  Schedules all = BuildAll(Collective::kAllToAll, Algorithm::kPairwise, 4);
  ASSERT_EQ(ToString(all[3].steps[0]), "send input[0] to rank 0");
  all[3].steps[0].source = Input(1);
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 0, step #1 (receive output[3] from rank 3)"),
                                        HasSubstr("writes block 1 where"))));
  all = BuildAll(Collective::kAllToAll, Algorithm::kPairwise, 4);
  std::swap(all[3].steps[1].target, all[3].steps[3].target);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 3, step #"), HasSubstr("which may be"))));
  all = BuildAll(Collective::kAllToAll, Algorithm::kBruck, 4);
  std::swap(all[3].steps.back().target, (all[3].steps.end() - 2)->target);
  EXPECT_THAT(Verify(all, false), IsFault("rank 3: output[0] ends as r1 of block 3, not as block 3 of rank 0's input"));
  EXPECT_THAT(Verify(World(Collective::kAllToAll, 2, 1, {{Copy(Input(0), Scratch(0))}, {}}), false),
              IsFault("uses scratch, which has no size"));
}

TEST(Verifier, RefusesABarrierThatCanBeLeftTooEarly) {
  Schedules all = BuildAll(Collective::kBarrier, Algorithm::kDissemination, 4);
  LOCKSTEP_EXPECT_OK(Verify(all, false));
  // Rank 1 passes on what it knows before it has heard from rank 0.
  ASSERT_EQ(ToString(all[1].steps[2]), "send nothing to rank 3, after #1");
  all[1].steps[2].after.clear();
  EXPECT_THAT(Verify(all, false), IsFault("rank 3 may leave the barrier before rank 0 has entered it"));
  EXPECT_THAT(Verify(World(Collective::kBarrier, 0, 0, {{}, {}}), false),
              IsFault("rank 0 may leave the barrier before rank 1 has entered it"));
}

TEST(Verifier, RefusesSchedulesThatDoNotBelongTogether) {
  EXPECT_THAT(Verify({}, false), IsFault("no schedules"));
  Schedules all = ProvedRing(3);
  EXPECT_THAT(Verify(absl::MakeConstSpan(all).first(2), false),
              IsFault("rank 0: the schedule is for a world of 3, and there are 2"));
  std::swap(all[1], all[2]);
  EXPECT_THAT(Verify(all, false), IsFault("rank 1: the schedule is that of rank 2"));
  all = ProvedRing(3);
  all[2].root = Rank(1);
  EXPECT_THAT(Verify(all, false), IsFault("rank 2: the schedule differs from rank 0's"));
  all = ProvedRing(3);
  for (Schedule& schedule : all) schedule.root = Rank(3);
  EXPECT_THAT(Verify(all, false), IsFault("a root outside the world"));
  EXPECT_THAT(Verify(World(Collective::kAllGather, 3, 0, {{}, {}}), false), IsFault("the schedule has 3 blocks"));
  EXPECT_THAT(Verify(World(Collective::kBarrier, 0, 1, {{}}), false),
              IsFault("the schedule has 0 blocks and 1 of scratch"));
}

}  // namespace
}  // namespace lockstep::schedule_testing
