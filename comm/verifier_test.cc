// What the verifier refuses. Each test breaks a schedule that is proved when whole, or spells out a small wrong one,
// and expects the fault to be named. That the schedules of this library are proved is in schedule_test.cc.

#include "comm/verifier.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "comm/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

using Schedules = std::vector<Schedule>;

Schedules BuildAll(Collective collective, Algorithm algorithm, int size, int root = 0) {
  Schedules all;
  for (int rank = 0; rank < size; ++rank) {
    absl::StatusOr<Schedule> schedule = BuildSchedule(collective, algorithm, Rank(rank), size, Rank(root));
    LOCKSTEP_EXPECT_OK(schedule);
    if (schedule.ok()) all.push_back(*std::move(schedule));
  }
  return all;
}

Schedules ProvedRing(int size) {
  Schedules all = BuildAll(Collective::kAllReduce, Algorithm::kRing, size);
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/false));
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/true));
  return all;
}

// Takes a step out of a list, and out of every `after`.
void Drop(Schedule* schedule, int index) {
  schedule->steps.erase(schedule->steps.begin() + index);
  for (Step& step : schedule->steps) {
    for (int32_t& after : step.after) {
      if (after == index) after = Step::kNone;
      if (after > index) --after;
    }
  }
}

Operand Input(int block, int blocks = 1) { return {Window::kInput, block, blocks}; }
Operand Output(int block, int blocks = 1) { return {Window::kOutput, block, blocks}; }
Operand Scratch(int block, int blocks = 1) { return {Window::kScratch, block, blocks}; }

Step Make(Step::Kind kind, int peer, Operand source, Operand target, std::initializer_list<int32_t> after) {
  Step step;
  step.kind = kind;
  step.peer = Rank(peer);
  step.source = source;
  step.target = target;
  std::copy(after.begin(), after.end(), step.after.begin());
  return step;
}
Step Send(Operand source, int peer, std::initializer_list<int32_t> after = {}) {
  return Make(Step::Kind::kSend, peer, source, Input(0, 0), after);
}
Step Receive(int peer, Operand target, std::initializer_list<int32_t> after = {}) {
  return Make(Step::Kind::kReceive, peer, Input(0, 0), target, after);
}
Step ReceiveReduce(int peer, Operand source, Operand target, std::initializer_list<int32_t> after = {}) {
  return Make(Step::Kind::kReceiveReduce, peer, source, target, after);
}
Step Copy(Operand source, Operand target, std::initializer_list<int32_t> after = {}) {
  return Make(Step::Kind::kCopy, 0, source, target, after);
}
Step Reduce(Operand source, Operand target, std::initializer_list<int32_t> after = {}) {
  return Make(Step::Kind::kReduce, 0, source, target, after);
}

Schedules World(Collective collective, int blocks, int scratch_blocks, std::vector<std::vector<Step>> steps) {
  Schedules all(steps.size());
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    all[rank].collective = collective;
    all[rank].rank = Rank(static_cast<int>(rank));
    all[rank].size = static_cast<int>(steps.size());
    all[rank].blocks = blocks;
    all[rank].scratch_blocks = scratch_blocks;
    all[rank].steps = std::move(steps[rank]);
  }
  return all;
}

// A right all-reduce of two ranks, to be broken: each step of the tests below differs from it in one thing.
std::vector<Step> Exchange(int peer) {
  return {Copy(Input(0), Output(0)), Send(Output(0), peer, {0}), Receive(peer, Scratch(0)),
          Reduce(Scratch(0), Output(0), {1, 2})};
}

TEST(Verifier, ProvesAScheduleWrittenByHand) {
  const Schedules all = World(Collective::kAllReduce, 1, 1, {Exchange(1), Exchange(0)});
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/true));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/false));
  EXPECT_EQ(proof.Expression(Rank(1), 0), "(r1+r0)");
  EXPECT_EQ(proof.message_depth(), 1);
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
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("rank 1: output[1] is never written")));
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

TEST(Verifier, RefusesSwappedPeers) {
  Schedules all = ProvedRing(4);
  all[2].steps[0].peer = Rank(1);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("message that is never")));
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
  EXPECT_THAT(Verify(gather, false),
              StatusIs(kInternal, HasSubstr("rank 0: output[1] ends as r3 of block 3, not as rank 1's input")));
}

// The canonical test of the race check: every `after` of every shipped schedule is needed by some mode,
// or the verifier does not see what it is for.
TEST(Verifier, RefusesAnyScheduleWithoutOneOfItsAfters) {
  for (int index = 0; index < kCollectiveCount; ++index) {
    const Collective collective = static_cast<Collective>(index);
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      for (int size : {2, 3, 4, 5, 8, 11}) {
        const Schedules whole = BuildAll(collective, algorithm, size);
        for (int rank = 0; rank < size; ++rank) {
          for (size_t step = 0; step < whole[rank].steps.size(); ++step) {
            for (int k = 0; k < Step::kAfterMax; ++k) {
              if (whole[rank].steps[step].after[k] == Step::kNone) continue;
              // Leaving early takes all of a barrier's rounds to show: see below.
              if (collective == Collective::kBarrier) continue;
              Schedules all = whole;
              all[rank].steps[step].after[k] = Step::kNone;
              const absl::Status out_of_place = Verify(all, false), in_place = Verify(all, true);
              EXPECT_THAT(out_of_place.ok() ? in_place : out_of_place,
                          StatusIs(kInternal, HasSubstr("races with step #")))
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
  all[1].steps[2].after[0] = Step::kNone;
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #2 (send output[0] to rank 2) races with step #1 "
                                                   "(receive_reduce from rank 0: output[0] = input[0] op arriving)"),
                                        HasSubstr("neither waits for the other"))));
}

TEST(Verifier, SeesRacesThatExistOnlyInPlace) {
  Schedules all = ProvedRing(4);
  // Block 1 of rank 1 leaves from the input, and comes back into the output.
  ASSERT_EQ(ToString(all[1].steps[7]), "receive output[1] from rank 0, after #0");
  all[1].steps[7].after[0] = Step::kNone;
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/false));
  EXPECT_THAT(Verify(all, /*in_place=*/true), StatusIs(kInternal, HasSubstr("races with step #0 (send input[1] to rank "
                                                                            "2) in place")));
}

TEST(Verifier, SeesARaceOfTwoWrites) {
  EXPECT_THAT(Verify(World(Collective::kBroadcast, 1, 1,
                           {{Copy(Input(0), Output(0)), Send(Input(0), 1), Send(Input(0), 1)},
                            {Receive(0, Output(0)), Receive(0, Output(0))}}),
                     false),
              StatusIs(kInternal, HasSubstr("rank 1, step #1 (receive output[0] from rank 0) races with step #0")));
}

TEST(Verifier, AcceptsOrderThroughOtherSteps) {
  LOCKSTEP_EXPECT_OK(
      Verify(World(Collective::kBroadcast, 1, 3,
                   {{Copy(Input(0), Output(0)), Copy(Input(0), Scratch(0)), Copy(Scratch(0), Scratch(1), {1}),
                     Copy(Scratch(1), Scratch(2), {2}), Copy(Input(0), Scratch(0), {3})}}),
             false));
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
              StatusIs(kInternal, HasSubstr("writes block 0 where block 1 belongs, which may be smaller")));
}

TEST(Verifier, RefusesABlockInScratchOfAnotherSize) {
  const auto through_scratch = [](int slot) {
    return Verify(
        World(Collective::kBroadcast, 2, 4,
              {{Copy(Input(1), Scratch(slot)), Copy(Scratch(slot), Output(1), {0}), Copy(Input(0), Output(0))}}),
        false);
  };
  LOCKSTEP_EXPECT_OK(through_scratch(1));
  LOCKSTEP_EXPECT_OK(through_scratch(3));
  EXPECT_THAT(through_scratch(2), StatusIs(kInternal, AllOf(StartsWith("rank 0, step #0 (copy scratch[2] = input[1])"),
                                                            HasSubstr("writes block 1 where block 0 belongs"))));
}

TEST(Verifier, RefusesADuplicatedContribution) {
  // Rank 1 counts its input once more on the way.
  EXPECT_THAT(Verify(World(Collective::kReduce, 1, 1,
                           {{ReceiveReduce(1, Input(0), Output(0))},
                            {Copy(Input(0), Scratch(0)), Reduce(Input(0), Scratch(0), {0}), Send(Scratch(0), 0, {1})}}),
                     false),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 (reduce scratch[0] = scratch[0] op input[0]"),
                                        HasSubstr("adds the contribution of rank 1 a second time"))));
  // Two ranks each send rank 0 what has rank 2's contribution in it.
  EXPECT_THAT(Verify(World(Collective::kReduce, 1, 1,
                           {{ReceiveReduce(1, Input(0), Output(0)), ReceiveReduce(2, Output(0), Output(0), {0})},
                            {ReceiveReduce(2, Input(0), Scratch(0)), Send(Scratch(0), 0, {0})},
                            {Send(Input(0), 1), Send(Input(0), 0)}}),
                     false),
              StatusIs(kInternal, AllOf(StartsWith("rank 0, step #1"),
                                        HasSubstr("adds the contribution of rank 2 a second time"))));
}

TEST(Verifier, RefusesAMissingContribution) {
  EXPECT_THAT(
      Verify(World(Collective::kReduce, 1, 0, {{Copy(Input(0), Output(0))}, {}}), true),
      StatusIs(kInternal, HasSubstr("rank 0: output[0] ends as r0 of block 0, without the contribution of rank 1")));
}

TEST(Verifier, RefusesTreesThatDifferBetweenRanks) {
  // Both have everyone's contribution once, but (r0+r1)+r2 and r0+(r1+r2) may round differently.
  const Schedules all = World(
      Collective::kAllReduce, 1, 2,
      {{Copy(Input(0), Output(0)), Send(Input(0), 1), Send(Input(0), 2), Receive(1, Scratch(0)), Receive(2, Scratch(1)),
        Reduce(Scratch(0), Output(0), {0, 3, 1}), Reduce(Scratch(1), Output(0), {5, 4, 2})},
       {Copy(Input(0), Output(0)), Send(Input(0), 0), Send(Input(0), 2), Receive(0, Scratch(0)), Receive(2, Scratch(1)),
        Reduce(Scratch(0), Output(0), {0, 3, 1}), Reduce(Scratch(1), Output(0), {5, 4, 2})},
       {Copy(Input(0), Output(0)), Send(Input(0), 0), Send(Input(0), 1), Receive(0, Scratch(0)), Receive(1, Scratch(1)),
        Reduce(Scratch(1), Output(0), {0, 4, 2}), Reduce(Scratch(0), Output(0), {5, 3, 1})}});
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("rank 2: output[0] ends as ((r2+r1)+r0) of block 0, on "
                                                                "rank 0 as ((r0+r1)+r2): the bits may differ")));
}

TEST(Verifier, RefusesADeadlock) {
  // Works wherever sends are buffered, and hangs where they are not.
  const auto receive_first = [](int peer) -> std::vector<Step> {
    return {Receive(peer, Scratch(0)), Copy(Input(0), Output(0)), Send(Output(0), peer, {0, 1}),
            Reduce(Scratch(0), Output(0), {2})};
  };
  EXPECT_THAT(
      Verify(World(Collective::kAllReduce, 1, 1, {receive_first(1), receive_first(0)}), false),
      StatusIs(kInternal, AllOf(StartsWith("deadlock: rank 0, step #0 (receive scratch[0] from rank 1) waits for "
                                           "rank 1, step #2 (send output[0] to rank 0, after #0 #1)"),
                                HasSubstr("; rank 1, step #0"))));
  const auto send_first = [](int peer) -> std::vector<Step> {
    return {Copy(Input(0), Output(0)), Send(Output(0), peer, {0}), ReceiveReduce(peer, Output(0), Output(0), {1})};
  };
  EXPECT_THAT(Verify(World(Collective::kAllReduce, 1, 1, {send_first(1), send_first(0)}), false),
              StatusIs(kInternal, AllOf(StartsWith("deadlock: rank 0, step #1 (send"),
                                        HasSubstr("waits for rank 1, step #2 (receive_reduce"))));
}

// Messages of one rank to another are started in list order, so one that waits holds up those behind it.
TEST(Verifier, RefusesADeadlockThroughTheOrderOfAChannel) {
  const Schedules all =
      World(Collective::kReduce, 1, 3,
            {{ReceiveReduce(1, Input(0), Scratch(0)), Send(Input(0), 1), Receive(1, Scratch(1)),
              Copy(Scratch(0), Output(0), {0})},
             {Receive(0, Scratch(0)), Copy(Scratch(0), Scratch(2), {0}), Send(Input(0), 0, {1}), Send(Input(0), 0)}});
  LOCKSTEP_EXPECT_OK(Verify(all, false));
  Schedules blocked = all;
  // Now rank 0 sends only once the second message is there, which rank 1 has queued behind the first.
  blocked[0].steps = {ReceiveReduce(1, Input(0), Scratch(0)), Receive(1, Scratch(1)), Send(Input(0), 1, {1}),
                      Copy(Scratch(0), Output(0), {0})};
  EXPECT_THAT(Verify(blocked, false), StatusIs(kInternal, StartsWith("deadlock: ")));
}

TEST(Verifier, RefusesMemoryThatWasNeverWritten) {
  Schedules all = World(Collective::kAllReduce, 1, 1, {Exchange(1), Exchange(0)});
  all[1].steps[1].source = Scratch(0);
  all[1].steps[2].after[0] = 1;
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 (send scratch[0] to rank 0"),
                                                            HasSubstr("reads memory that was never written"))));
  all = World(Collective::kAllReduce, 1, 1, {Exchange(1), Exchange(0)});
  Drop(&all[0], 0);
  all[0].steps[0].source = Input(0);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("adds to a target that was never written")));
}

TEST(Verifier, RefusesMemoryThatIsNotThere) {
  const auto fault = [](Collective collective, int blocks, Step step) {
    std::vector<Step> steps;
    steps.push_back(step);
    return Verify(World(collective, blocks, 1, {{}, steps}), false);
  };
  EXPECT_THAT(fault(Collective::kAllReduce, 1, Send(Input(1), 0)),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #0 (send input[1]"),
                                        HasSubstr("uses input[1], which is outside the vector"))));
  EXPECT_THAT(fault(Collective::kAllReduce, 2, Send(Output(0, 3), 0)),
              StatusIs(kInternal, HasSubstr("uses output[2], which is outside the vector")));
  EXPECT_THAT(fault(Collective::kAllReduce, 1, Send(Output(-1), 0)),
              StatusIs(kInternal, HasSubstr("uses output[-1], which is outside the vector")));
  EXPECT_THAT(fault(Collective::kAllReduce, 1, Receive(0, Scratch(1))),
              StatusIs(kInternal, HasSubstr("uses scratch[1], which is outside the scratch")));
  EXPECT_THAT(fault(Collective::kBroadcast, 1, Send(Input(0), 0)),
              StatusIs(kInternal, HasSubstr("uses input[0], which is there on the root alone")));
  EXPECT_THAT(fault(Collective::kReduce, 1, Receive(0, Output(0))),
              StatusIs(kInternal, HasSubstr("uses output[0], which is there on the root alone")));
  EXPECT_THAT(fault(Collective::kAllGather, 2, Send(Input(0), 0)),
              StatusIs(kInternal, HasSubstr("uses input[0], which is another rank's")));
  EXPECT_THAT(fault(Collective::kReduceScatter, 2, Receive(0, Output(0))),
              StatusIs(kInternal, HasSubstr("uses output[0], which is another rank's")));
}

TEST(Verifier, RefusesMalformedSteps) {
  const auto fault = [](Step step) { return Verify(World(Collective::kAllReduce, 4, 0, {{step}, {}}), false); };
  EXPECT_THAT(fault(Receive(1, Input(0))), StatusIs(kInternal, HasSubstr("writes the input")));
  EXPECT_THAT(fault(Copy(Output(0), Input(0))), StatusIs(kInternal, HasSubstr("writes the input")));
  EXPECT_THAT(fault(Send(Input(0), 2)), StatusIs(kInternal, HasSubstr("a peer outside the world")));
  EXPECT_THAT(fault(Send(Input(0), -1)), StatusIs(kInternal, HasSubstr("a peer outside the world")));
  EXPECT_THAT(fault(Send(Input(0), 0)), StatusIs(kInternal, HasSubstr("the rank itself as its peer")));
  EXPECT_THAT(fault(Send(Input(0), 1, {0})), StatusIs(kInternal, HasSubstr("waits for #0, which is no earlier step")));
  EXPECT_THAT(fault(Send(Input(0), 1, {-2})),
              StatusIs(kInternal, HasSubstr("waits for #-2, which is no earlier step")));
  EXPECT_THAT(fault(Send(Input(0, -1), 1)), StatusIs(kInternal, HasSubstr("a negative number of blocks")));
  EXPECT_THAT(fault(ReceiveReduce(1, Input(0, 2), Output(0, 3))),
              StatusIs(kInternal, HasSubstr("has 2 blocks as its source and 3 as its target")));
  EXPECT_THAT(fault(Copy(Output(0, 2), Output(1, 2))),
              StatusIs(kInternal, HasSubstr("has a source and a target that overlap")));
}

TEST(Verifier, RefusesMessagesOfDifferentLengths) {
  EXPECT_THAT(Verify(World(Collective::kBroadcast, 2, 0,
                           {{Copy(Input(0, 2), Output(0, 2)), Send(Input(0, 2), 1)}, {Receive(0, Output(0))}}),
                     false),
              StatusIs(kInternal, AllOf(StartsWith("rank 0, step #1 (send input[0..1] to rank 1) sends 2 blocks"),
                                        HasSubstr("rank 1, step #0 (receive output[0] from rank 0) takes 1"))));
}

TEST(Verifier, RunsOperandsOfSeveralBlocks) {
  // Recursive halving and doubling of two ranks would be this: halves out, halves back.
  const Schedules all = World(Collective::kAllReduce, 4, 0,
                              {{Send(Input(2, 2), 1), ReceiveReduce(1, Input(0, 2), Output(0, 2)),
                                Send(Output(0, 2), 1, {1}), Receive(1, Output(2, 2), {0})},
                               {Send(Input(0, 2), 0), ReceiveReduce(0, Input(2, 2), Output(2, 2)),
                                Send(Output(2, 2), 0, {1}), Receive(0, Output(0, 2), {0})}});
  LOCKSTEP_EXPECT_OK(Verify(all, true));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, false));
  EXPECT_EQ(proof.Expression(Rank(1), 1), "(r0+r1)");
  EXPECT_EQ(proof.Expression(Rank(0), 3), "(r1+r0)");
}

TEST(Verifier, RefusesABarrierThatCanBeLeftTooEarly) {
  Schedules all = BuildAll(Collective::kBarrier, Algorithm::kDissemination, 4);
  LOCKSTEP_EXPECT_OK(Verify(all, false));
  // Rank 1 passes on what it knows before it has heard from rank 0.
  ASSERT_EQ(ToString(all[1].steps[2]), "send nothing to rank 3, after #1");
  all[1].steps[2].after[0] = Step::kNone;
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, HasSubstr("rank 3 may leave the barrier before rank 0 has entered it")));
  EXPECT_THAT(Verify(World(Collective::kBarrier, 0, 0, {{}, {}}), false),
              StatusIs(kInternal, HasSubstr("rank 0 may leave the barrier before rank 1 has entered it")));
}

TEST(Verifier, RefusesSchedulesThatDoNotBelongTogether) {
  EXPECT_THAT(Verify({}, false), StatusIs(kInternal, HasSubstr("no schedules")));
  Schedules all = ProvedRing(3);
  EXPECT_THAT(Verify(absl::MakeConstSpan(all).first(2), false),
              StatusIs(kInternal, HasSubstr("rank 0: the schedule is for a world of 3, and there are 2")));
  std::swap(all[1], all[2]);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("rank 1: the schedule is that of rank 2")));
  all = ProvedRing(3);
  all[2].root = Rank(1);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("rank 2: the schedule differs from rank 0's")));
  all = ProvedRing(3);
  for (Schedule& schedule : all) schedule.root = Rank(3);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, HasSubstr("a root outside the world")));
  EXPECT_THAT(Verify(World(Collective::kAllGather, 3, 0, {{}, {}}), false),
              StatusIs(kInternal, HasSubstr("the schedule has 3 blocks")));
  EXPECT_THAT(Verify(World(Collective::kBarrier, 0, 1, {{}}), false),
              StatusIs(kInternal, HasSubstr("the schedule has 0 blocks and 1 of scratch")));
}

}  // namespace
}  // namespace lockstep
