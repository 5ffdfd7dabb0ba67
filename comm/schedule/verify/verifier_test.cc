// What the verifier refuses in worlds written by hand: messages, order, memory, reductions. Each test spells out a small wrong
// world, or breaks a right one, and expects the fault to be named. verifier_mutation_test.cc breaks the library's own schedules.

#include "comm/schedule/verify/verifier.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
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
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

using Schedules = std::vector<Schedule>;

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

TEST(Verifier, SeesARaceOfTwoWrites) {
  EXPECT_THAT(Verify(World(Collective::kBroadcast, 1, 1,
                           {{Copy(Input(0), Output(0)), Send(Input(0), 1), Send(Input(0), 1)},
                            {Receive(0, Output(0)), Receive(0, Output(0))}}),
                     false),
              IsFault("rank 1, step #1 (receive output[0] from rank 0) races with step #0"));
}

TEST(Verifier, AcceptsOrderThroughOtherSteps) {
  LOCKSTEP_EXPECT_OK(
      Verify(World(Collective::kBroadcast, 1, 3,
                   {{Copy(Input(0), Output(0)), Copy(Input(0), Scratch(0)), Copy(Scratch(0), Scratch(1), {1}),
                     Copy(Scratch(1), Scratch(2), {2}), Copy(Input(0), Scratch(0), {3})}}),
             false));
}

TEST(Verifier, RefusesABlockInScratchOfAnotherSize) {
  const auto through_scratch = [](int written_as, int read_as) {
    return Verify(World(Collective::kBroadcast, 2, 1,
                        {{Copy(Input(1), Scratch(0, written_as)), Copy(Scratch(0, read_as), Output(1), {0}),
                          Copy(Input(0), Output(0))}}),
                  false);
  };
  LOCKSTEP_EXPECT_OK(through_scratch(1, 1));
  EXPECT_THAT(through_scratch(0, 1),
              StatusIs(kInternal, AllOf(StartsWith("rank 0, step #0 (copy scratch[0] = input[1])"),
                                        HasSubstr("writes block 1 where block 0 belongs"))));
  EXPECT_THAT(through_scratch(1, 0),
              StatusIs(kInternal, AllOf(StartsWith("rank 0, step #1 (copy output[1] = scratch[0]"),
                                        HasSubstr("reads block 1 as if it were block 0"))));
  EXPECT_THAT(through_scratch(2, 2), IsFault("has scratch for blocks outside the vector"));
}

// Two blocks in scratch lie one behind the other, and where the second begins depends on the first.
TEST(Verifier, RefusesAPartOfWhatIsPackedInScratch) {
  const auto through_scratch = [](Algorithm algorithm, std::vector<Step> steps) {
    Schedules all = World(Collective::kReduceScatter, 2, 2, {std::move(steps), {}});
    for (Schedule& schedule : all) schedule.algorithm = algorithm;
    return std::string(Verify(all, false).message());
  };
  const std::vector<Step> whole = {Copy(Input(0, 2), Scratch(0, 0, 2)), Copy(Scratch(0, 0, 2), Scratch(0, 0, 2), {0})};
  const std::vector<Step> part = {Copy(Input(0, 2), Scratch(0, 0, 2)), Copy(Scratch(1, 1), Scratch(0, 0), {0})};
  constexpr char kFault[] = "touches a part of scratch[0..1], or more, which another step touches as one";
  EXPECT_THAT(through_scratch(Algorithm::kRing, part), AllOf(StartsWith("rank 0, step #1"), HasSubstr(kFault)));
  EXPECT_THAT(through_scratch(Algorithm::kRing, whole), Not(HasSubstr(kFault)));
  ASSERT_TRUE(NeedsEqualBlocks(Collective::kReduceScatter, Algorithm::kHalvingDoubling));
  EXPECT_THAT(through_scratch(Algorithm::kHalvingDoubling, part), Not(HasSubstr(kFault)));
}

TEST(Verifier, RefusesADeadlock) {
  // Works wherever sends are buffered, and hangs where they are not.
  const auto receive_first = [](int peer) -> std::vector<Step> {
    return {Receive(peer, Scratch(0)), Copy(Input(0), Output(0)), Send(Output(0), peer, {0, 1}),
            Reduce(Scratch(0), Output(0), {2})};
  };
  EXPECT_THAT(Verify(World(Collective::kAllReduce, 1, 1, {receive_first(1), receive_first(0)}), false),
              StatusIs(kInternal, AllOf(StartsWith("deadlock: rank 0, step #0 (receive scratch[0] from rank 1) waits "
                                                   "for rank 1, step #2 (send output[0] to rank 0, after #0 #1)"),
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
  all[1].steps[2].after = {1};
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 (send scratch[0] to rank 0"),
                                                            HasSubstr("reads memory that was never written"))));
  all = World(Collective::kAllReduce, 1, 1, {Exchange(1), Exchange(0)});
  Drop(&all[0], 0);
  all[0].steps[0].source = Input(0);
  EXPECT_THAT(Verify(all, false), IsFault("reads memory that was never written"));
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
              IsFault("uses output[2], which is outside the vector"));
  EXPECT_THAT(fault(Collective::kAllReduce, 1, Send(Output(-1), 0)),
              IsFault("uses output[-1], which is outside the vector"));
  EXPECT_THAT(fault(Collective::kAllReduce, 1, Receive(0, Scratch(1))),
              IsFault("uses scratch[1], which is outside the scratch"));
  EXPECT_THAT(fault(Collective::kBroadcast, 1, Send(Input(0), 0)),
              IsFault("uses input[0], which is there on the root alone"));
  EXPECT_THAT(fault(Collective::kReduce, 1, Receive(0, Output(0))),
              IsFault("uses output[0], which is there on the root alone"));
  EXPECT_THAT(fault(Collective::kAllGather, 2, Send(Input(0), 0)), IsFault("uses input[0], which is another rank's"));
  EXPECT_THAT(fault(Collective::kReduceScatter, 2, Receive(0, Output(0))),
              IsFault("uses output[0], which is another rank's"));
}

TEST(Verifier, RefusesMalformedSteps) {
  const auto fault = [](Step step) { return Verify(World(Collective::kAllReduce, 4, 0, {{step}, {}}), false); };
  EXPECT_THAT(fault(Receive(1, Input(0))), IsFault("writes the input"));
  EXPECT_THAT(fault(Copy(Output(0), Input(0))), IsFault("writes the input"));
  EXPECT_THAT(fault(Send(Input(0), 2)), IsFault("a peer outside the world"));
  EXPECT_THAT(fault(Send(Input(0), -1)), IsFault("a peer outside the world"));
  EXPECT_THAT(fault(Send(Input(0), 0)), IsFault("the rank itself as its peer"));
  EXPECT_THAT(fault(Send(Input(0), 1, {0})), IsFault("waits for #0, which is no earlier step"));
  EXPECT_THAT(fault(Send(Input(0), 1, {-2})), IsFault("waits for #-2, which is no earlier step"));
  EXPECT_THAT(fault(Send(Input(0, -1), 1)), IsFault("a negative number of blocks"));
  EXPECT_THAT(fault(ReceiveReduce(1, Input(0, 2), Output(0, 3))),
              IsFault("has 2 blocks as its source and 3 as its target"));
  EXPECT_THAT(fault(Copy(Output(0, 2), Output(1, 2))), IsFault("has a source and a target that overlap"));
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

// ---- Reductions: terms twice, missing, or in an order that gives other bits.

// Three ranks that each collect everyone's input: `last` has the terms in its own order.
Schedules Collecting(std::vector<Operand> last) {
  const std::vector<Operand> in_order[] = {{Input(0), Scratch(0), Scratch(1)}, {Scratch(0), Input(0), Scratch(1)}};
  const auto rank = [](int a, int b, const std::vector<Operand>& terms) -> std::vector<Step> {
    return {Send(Input(0), a), Send(Input(0), b), Receive(a, Scratch(0)), Receive(b, Scratch(1)),
            ReduceMany(terms, Output(0), {0, 1, 2, 3})};
  };
  return World(Collective::kAllReduce, 1, 2, {rank(1, 2, in_order[0]), rank(0, 2, in_order[1]), rank(0, 1, last)});
}

TEST(Verifier, ProvesAFoldOfManyTerms) {
  const Schedules all = Collecting({Scratch(0), Scratch(1), Input(0)});
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/false));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, /*in_place=*/true));
  EXPECT_EQ(proof.Expression(Rank(2), 0), "(r0+r1+r2)");
  EXPECT_TRUE(proof.reduces_in_rank_order());
  EXPECT_TRUE(proof.rounds_once());
}

TEST(Verifier, RefusesTermsInAnotherOrderOnOneRank) {
  EXPECT_THAT(Verify(Collecting({Scratch(0), Input(0), Scratch(1)}), false),
              IsFault("rank 2: output[0] ends as (r0+r2+r1) of block 0, on rank 0 as (r0+r1+r2): the bits may differ"));
  // One by one, each sum is rounded: in the order of the ranks too.
  Schedules all = Collecting({Scratch(0), Scratch(1), Input(0)});
  all[2].steps.pop_back();
  all[2].steps.push_back(Copy(Scratch(0), Output(0), {0, 1, 2}));
  all[2].steps.push_back(Reduce(Scratch(1), Output(0), {3, 4}));
  all[2].steps.push_back(Reduce(Input(0), Output(0), {5}));
  EXPECT_THAT(Verify(all, false), IsFault("ends as ((r0+r1)+r2) of block 0, on rank 0 as (r0+r1+r2)"));
}

TEST(Verifier, SeesAFoldInAnotherOrder) {
  Schedules all = Collecting({Scratch(0), Input(0), Scratch(1)});
  all[0].steps.back().terms = {Input(0), Scratch(1), Scratch(0)};
  all[1].steps.back().terms = {Scratch(0), Scratch(1), Input(0)};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, false));
  EXPECT_EQ(proof.Expression(Rank(0), 0), "(r0+r2+r1)");
  EXPECT_FALSE(proof.reduces_in_rank_order());
  EXPECT_TRUE(proof.rounds_once());
}

TEST(Verifier, RefusesTermsThatAreWrong) {
  const auto fault = [](std::vector<Operand> terms) { return Verify(Collecting(std::move(terms)), false); };
  EXPECT_THAT(
      fault({Scratch(0), Scratch(0), Input(0)}),
      StatusIs(
          kInternal,
          AllOf(
              StartsWith(
                  "rank 2, step #4 (reduce_many output[0] = scratch[0] op scratch[0] op input[0], after #0 #1 #2 #3)"),
              HasSubstr("adds the contribution of rank 0 a second time"))));
  EXPECT_THAT(fault({Scratch(0), Input(0)}), IsFault("without the contribution of rank 1"));
  EXPECT_THAT(fault({Scratch(0)}), IsFault("has 1 terms"));
  EXPECT_THAT(fault({}), IsFault("has 0 terms"));
  EXPECT_THAT(fault({Scratch(0), Output(0), Input(0)}), IsFault("reads memory that was never written"));
  EXPECT_THAT(fault({Scratch(0), Scratch(2), Input(0)}), IsFault("outside the scratch"));
  Schedules all = Collecting({Scratch(0), Scratch(1), Input(0)});
  all[0].steps[0].terms = {Input(0), Input(0)};
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 0, step #0 (send"), HasSubstr("2 terms"))));
}

TEST(Verifier, RefusesAFoldBeforeAllItsTermsAreThere) {
  for (size_t missing = 0; missing < 4; ++missing) {
    Schedules all = Collecting({Scratch(0), Scratch(1), Input(0)});
    Step::After& after = all[2].steps.back().after;
    after.erase(after.begin() + missing);
    // In place, the sum is made where the input is being sent from.
    EXPECT_THAT(Verify(all, /*in_place=*/true),
                StatusIs(kInternal, AllOf(StartsWith("rank 2, step #4 (reduce_many"), HasSubstr("races with step #"))));
    EXPECT_EQ(Verify(all, /*in_place=*/false).ok(), missing < 2);
  }
}

TEST(Verifier, RefusesADuplicatedContribution) {
  // Rank 1 counts its input once more on the way.
  EXPECT_THAT(Verify(World(Collective::kReduce, 1, 1,
                           {{ReceiveReduce(1, Input(0), Output(0))},
                            {Copy(Input(0), Scratch(0)), Reduce(Input(0), Scratch(0), {0}), Send(Scratch(0), 0, {1})}}),
                     false),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 (reduce_many scratch[0] = scratch[0] op input[0]"),
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
  EXPECT_THAT(
      Verify(all, false),
      IsFault("rank 2: output[0] ends as ((r2+r1)+r0) of block 0, on rank 0 as ((r0+r1)+r2): the bits may differ"));
}

}  // namespace
}  // namespace lockstep::schedule_testing
