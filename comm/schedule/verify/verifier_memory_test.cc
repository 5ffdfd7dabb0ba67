// What the verifier proves and refuses in shared-memory schedules. That the library's own are proved as they are is in
// schedule_proofs_test.cc.

#include "comm/schedule/verify/verifier.h"

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
using ::testing::StartsWith;

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

using Schedules = std::vector<Schedule>;

Schedules SharedWorld(Collective collective, int blocks, int scratch_blocks, std::vector<std::vector<Step>> steps) {
  Schedules all = World(collective, blocks, scratch_blocks, std::move(steps));
  for (Schedule& schedule : all) schedule.algorithm = Algorithm::kDirect;
  return all;
}

// By collective and algorithm: every world in shared memory of some ranks, with a root in the middle.
std::vector<Schedules> Worlds(int size) {
  std::vector<Schedules> worlds;
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      if (UsesSharedMemory(algorithm)) worlds.push_back(BuildAll(collective, algorithm, size, /*root=*/size / 2));
    }
  }
  return worlds;
}

std::vector<Operand*> Operands(Step* step) {
  std::vector<Operand*> operands;
  if (step->kind == Step::Kind::kCopy) operands.push_back(&step->source);
  if (step->kind == Step::Kind::kCopy || step->kind == Step::Kind::kReduceMany) operands.push_back(&step->target);
  for (Operand& term : step->terms) operands.push_back(&term);
  for (Operand& target : step->more_targets) operands.push_back(&target);
  return operands;
}

// Changes one operand at a time of every step of every world in shared memory: `change` says whether it has.
template <typename Change>
void ExpectRefusedWithAny(Change change) {
  int changed = 0;
  for (const Schedules& whole : Worlds(4)) {
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      for (size_t index = 0; index < whole[rank].steps.size(); ++index) {
        Step step = whole[rank].steps[index];
        for (size_t k = 0; k < Operands(&step).size(); ++k) {
          Schedules all = whole;
          if (!change(all[rank], Operands(&all[rank].steps[index])[k])) continue;
          ++changed;
          EXPECT_THAT(Verify(all, /*in_place=*/false).code(), kInternal) << ToString(all[rank]);
        }
      }
    }
  }
  EXPECT_GT(changed, 20);
}

TEST(VerifierInSharedMemory, RefusesAnyScheduleWithoutOneOfItsSteps) {
  for (const Schedules& whole : Worlds(4)) {
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      for (size_t index = 0; index < whole[rank].steps.size(); ++index) {
        Schedules all = whole;
        Drop(&all[rank], static_cast<int>(index));
        EXPECT_THAT(Verify(all, /*in_place=*/false).code(), kInternal) << "without #" << index << " of\n"
                                                                       << ToString(whole[rank]);
      }
    }
  }
}

TEST(VerifierInSharedMemory, RefusesAnyOperandOfAnotherRank) {
  ExpectRefusedWithAny([](const Schedule& schedule, Operand* operand) {
    if (operand->rank == Operand::kOwn) return false;
    operand->rank = (operand->rank + 1) % schedule.size;
    if (operand->rank == schedule.rank.value()) operand->rank = (operand->rank + 1) % schedule.size;
    return true;
  });
}

TEST(VerifierInSharedMemory, RefusesAnyOperandOfAnotherBlock) {
  ExpectRefusedWithAny([](const Schedule& schedule, Operand* operand) {
    if (operand->window == Window::kScratch || schedule.blocks == 1) return false;
    operand->block = (operand->block + 1) % schedule.blocks;
    return true;
  });
  // One_line's scratch is by rank, that of two shots by owner.
  ExpectRefusedWithAny([](const Schedule& schedule, Operand* operand) {
    if (operand->window != Window::kScratch || schedule.scratch_blocks == 1) return false;
    operand->block = (operand->block + 1) % schedule.scratch_blocks;
    return true;
  });
}

TEST(VerifierInSharedMemory, RefusesAPassThatDoesNotBeginOrEndWithABarrier) {
  for (Schedules& first : Worlds(3)) {
    if (first[0].algorithm != Algorithm::kDirect) continue;
    Schedules last = first;
    for (Schedule& schedule : first) Drop(&schedule, 0);
    EXPECT_THAT(
        Verify(first, false),
        IsFault("rank 0: the schedule does not begin with a kBarrier step, and ranks touch each other's memory"));
    for (Schedule& schedule : last) Drop(&schedule, static_cast<int>(schedule.steps.size()) - 1);
    EXPECT_THAT(Verify(last, false), IsFault("touches another rank's memory after the last barrier"));
    for (Schedule& schedule : last) Drop(&schedule, 0);
    EXPECT_THAT(Verify(last, false), IsFault("does not begin with a kBarrier step"));
  }
  // The root touches nobody's memory, but tells where its own is.
  Schedules all = BuildAll(Collective::kBroadcast, Algorithm::kDirect, 3);
  ASSERT_EQ(ToString(all[0].steps[1]), "copy output[0] = input[0]");
  std::swap(all[0].steps[0], all[0].steps[1]);
  EXPECT_THAT(Verify(all, false), IsFault("rank 0: the schedule does not begin with"));
}

TEST(VerifierInSharedMemory, RefusesBarriersThatDoNotMatch) {
  Schedules all = BuildAll(Collective::kAllReduce, Algorithm::kDirect, 3);
  all[2].steps.push_back(Barrier());
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, "rank 2 holds 3 barriers, and rank 0 2"));
  all = SharedWorld(Collective::kBarrier, 0, 0, {{Barrier()}, {Barrier()}});
  LOCKSTEP_EXPECT_OK(Verify(all, false));
  all = SharedWorld(Collective::kAllReduce, 1, 2,
                    {{Barrier(), ReduceMany({Input(0), Of(1, Input(0))}, Output(0)), Barrier()},
                     {Share(Input(0), Scratch(0, 0, 2)), Copy(Input(0), Output(0)), Barrier()}});
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, AllOf(StartsWith("rank 1, step #0 (share input[0]"),
                                        HasSubstr("is another kind of barrier than rank 0, step #0 (barrier)"))));
}

// The blocks of a sum made by each rank, then fetched by the others: the way in two passes.
std::vector<Step> ReduceAndFetch(int rank, bool barrier_between) {
  const int peer = 1 - rank;
  std::vector<Operand> terms = {Input(rank), Of(peer, Input(rank))};
  if (rank == 1) std::swap(terms[0], terms[1]);
  std::vector<Step> steps = {Barrier(), ReduceMany(std::move(terms), Output(rank))};
  if (barrier_between) steps.push_back(Barrier());
  steps.push_back(Copy(Of(peer, Output(peer)), Output(peer)));
  steps.push_back(Barrier());
  return steps;
}

TEST(VerifierInSharedMemory, ProvesWhatIsOrderedByABarrier) {
  const Schedules all = SharedWorld(Collective::kAllReduce, 2, 0, {ReduceAndFetch(0, true), ReduceAndFetch(1, true)});
  for (bool in_place : {false, true}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, in_place));
    EXPECT_EQ(proof.Expression(Rank(0), 1), "(r0+r1)");
    EXPECT_TRUE(proof.reduces_in_rank_order());
    EXPECT_TRUE(proof.rounds_once());
    EXPECT_EQ(proof.message_depth(), 3);
  }
}

TEST(VerifierInSharedMemory, RefusesARaceOfTwoRanks) {
  const Schedules all = SharedWorld(Collective::kAllReduce, 2, 0, {ReduceAndFetch(0, false), ReduceAndFetch(1, false)});
  EXPECT_THAT(
      Verify(all, false),
      StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 (reduce_many output[1] = rank 0's input[1] op input[1]) "
                                           "races with rank 0, step #2 (copy output[1] = rank 1's output[1])"),
                                HasSubstr("there is no barrier between them"))));
}

TEST(VerifierInSharedMemory, SeesRacesThatExistOnlyInPlace) {
  // Everybody makes the whole sum.
  const Schedules all = SharedWorld(Collective::kAllReduce, 1, 0,
                                    {{Barrier(), ReduceMany({Input(0), Of(1, Input(0))}, Output(0)), Barrier()},
                                     {Barrier(), ReduceMany({Of(0, Input(0)), Input(0)}, Output(0)), Barrier()}});
  LOCKSTEP_EXPECT_OK(Verify(all, /*in_place=*/false));
  EXPECT_THAT(Verify(all, /*in_place=*/true), IsFault("races with rank 0, step #1 (reduce_many output[0] = input[0] op "
                                                      "rank 1's input[0]) in place: both touch the same block"));
}

TEST(VerifierInSharedMemory, RefusesTwoWritersOfABlock) {
  Schedules all = BuildAll(Collective::kAllReduce, Algorithm::kDirect, 3);
  all[0].steps.insert(all[0].steps.begin() + 2, Copy(Output(0), Of(2, Output(1))));
  EXPECT_THAT(Verify(all, false), IsFault("races with rank 0, step #2 (copy rank 2's output[1]"));
  // A reader beside other readers is none; beside a writer it is, whoever comes first.
  all = BuildAll(Collective::kBroadcast, Algorithm::kDirect, 4);
  all[0].steps.insert(all[0].steps.begin() + 2, Copy(Of(3, Output(0)), Output(0)));
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 3, step #1"), HasSubstr("races with"))));
}

// What a barrier shares is read before it.
TEST(VerifierInSharedMemory, RefusesToShareWhatAnotherRankWrites) {
  const auto world = [](bool barrier_between) {
    std::vector<Step> root = {Barrier(), Copy(Input(0), Of(1, Output(0))), Copy(Input(0), Output(0))};
    std::vector<Step> other = {Barrier()};
    for (std::vector<Step>* steps : {&root, &other}) {
      if (barrier_between) steps->push_back(Barrier());
      steps->push_back(Share(Output(0), Scratch(0, 0, 2)));
    }
    return SharedWorld(Collective::kBroadcast, 1, 2, {root, other});
  };
  LOCKSTEP_EXPECT_OK(Verify(world(true), false));
  EXPECT_THAT(Verify(world(false), false), StatusIs(kInternal, AllOf(StartsWith("rank 1, step #1 (share output[0]"),
                                                                     HasSubstr("races with rank 0, step #1"))));
}

TEST(VerifierInSharedMemory, SeesTheOrderOfAFold) {
  Schedules all = BuildAll(Collective::kAllReduce, Algorithm::kDirect, 3);
  std::swap(all[1].steps[1].terms[1], all[1].steps[1].terms[2]);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, true));
  EXPECT_EQ(proof.Expression(Rank(0), 1), "(r0+r2+r1)");
  EXPECT_FALSE(proof.reduces_in_rank_order());
  // In inline every rank reduces for itself.
  all = BuildAll(Collective::kAllReduce, Algorithm::kInline, 3);
  std::swap(all[1].steps[1].terms[1], all[1].steps[1].terms[2]);
  EXPECT_THAT(Verify(all, true),
              IsFault("rank 1: output[0] ends as (r0+r2+r1) of block 0, on rank 0 as (r0+r1+r2): the bits may differ"));
}

TEST(VerifierInSharedMemory, RefusesAnOutputThatIsNotWrittenEverywhere) {
  Schedules all = BuildAll(Collective::kAllReduce, Algorithm::kDirect, 3);
  ASSERT_EQ(all[1].steps[1].more_targets[0], Of(2, Output(1)));
  all[1].steps[1].more_targets.erase(all[1].steps[1].more_targets.begin());
  EXPECT_THAT(Verify(all, false), IsFault("rank 2: output[1] is never written"));
  EXPECT_THAT(Verify(all, true), IsFault("rank 2: output[1] ends as r2 of block 1"));
}

TEST(VerifierInSharedMemory, RefusesSharesThatAreNotThere) {
  Schedules all = BuildAll(Collective::kBroadcast, Algorithm::kInline, 3, /*root=*/1);
  all[1].steps[0].source = Input(0, 0);
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, AllOf(StartsWith("rank 0, step #1 (copy output[0] = scratch[1])"),
                                                            HasSubstr("reads memory that was never written"))));
  all = BuildAll(Collective::kAllGather, Algorithm::kInline, 3);
  ASSERT_EQ(ToString(all[0].steps[2]), "copy output[1] = scratch[1] for [1]");
  all[0].steps[2].source = Scratch(1, 2);
  EXPECT_THAT(Verify(all, false), IsFault("reads block 1 as if it were block 2, which may be smaller"));
}

TEST(VerifierInSharedMemory, RefusesMalformedShares) {
  const auto fault = [](Operand source, Operand target) {
    const Step share = Share(source, target);
    return Verify(SharedWorld(Collective::kAllReduce, 2, 3, {{share}, {share}}), false);
  };
  EXPECT_THAT(fault(Input(0, 2), Scratch(0, 0, 2)), IsFault("gives something else"));
  EXPECT_THAT(fault(Scratch(2), Scratch(0, 0, 2)), IsFault("gives something else"));
  EXPECT_THAT(fault(Of(1, Input(0)), Scratch(0, 0, 2)),
              IsFault("touches another rank's memory, which no such step can"));
  for (const Operand& target : {Scratch(0, 0, 1), Scratch(0, 1, 2), Output(0, 2), Scratch(0, 0, 3)}) {
    EXPECT_THAT(fault(Input(0), target), IsFault("a block of scratch for each rank"));
  }
  EXPECT_THAT(fault(Input(0), Scratch(2, 0, 2)), IsFault("uses scratch[3], which is outside"));
  const Schedules first = SharedWorld(Collective::kBroadcast, 1, 2,
                                      {{Share(Input(0), Scratch(0, 0, 2)), Copy(Input(0), Of(1, Output(0))), Barrier()},
                                       {Share(Input(0, 0), Scratch(0, 0, 2)), Barrier()}});
  EXPECT_THAT(Verify(first, false), IsFault("rank 0: the schedule does not begin with a kBarrier step"));
}

TEST(VerifierInSharedMemory, RefusesMalformedSteps) {
  const auto fault = [](Step step) {
    return Verify(SharedWorld(Collective::kAllReduce, 4, 1, {{Barrier(), step, Barrier()}, {Barrier(), Barrier()}}),
                  false);
  };
  EXPECT_THAT(fault(Send(Input(0), 1)), IsFault("is a message, in a shared-memory schedule"));
  EXPECT_THAT(fault(Copy(Input(0), Output(0), {0})), IsFault("waits for another step"));
  EXPECT_THAT(fault(Copy(Input(0), Of(1, Input(0)))), IsFault("writes the input"));
  EXPECT_THAT(fault(Copy(Input(0), Of(1, Scratch(0)))), IsFault("another rank's scratch"));
  EXPECT_THAT(fault(Copy(Input(0), Of(0, Output(0)))), IsFault("names rank 0, which is no other"));
  EXPECT_THAT(fault(Copy(Of(2, Input(0)), Output(0))), IsFault("names rank 2, which is no other"));
  EXPECT_THAT(fault(Copy(Of(-2, Input(0)), Output(0))), IsFault("names rank -2"));
  EXPECT_THAT(fault(Copy(Of(1, Input(4)), Output(0))), IsFault("uses rank 1's input[4], which is outside the vector"));
  EXPECT_THAT(fault(ReduceInto({Input(0), Of(1, Input(0))}, Output(0), {Of(1, Input(0))})),
              IsFault("writes the input"));
  EXPECT_THAT(fault(ReduceInto({Input(0), Of(1, Input(0))}, Output(0), {Output(0)})),
              IsFault("has two targets that overlap"));
  EXPECT_THAT(fault(ReduceInto({Input(0, 2), Of(1, Input(0, 2))}, Of(1, Output(0, 2)), {Of(1, Output(1, 2))})),
              IsFault("has two targets that overlap"));
  EXPECT_THAT(fault(ReduceInto({Input(0), Of(1, Input(0))}, Output(0), {Of(1, Output(0, 2))})),
              IsFault("has 2 blocks as another target and 1 as its target"));
  Step copies_twice = Copy(Input(0), Output(0));
  copies_twice.more_targets = {Of(1, Output(0))};
  EXPECT_THAT(fault(copies_twice), IsFault("has more than one target"));
  // In place a target may be a term, but overlaps none in another way, in whosever memory.
  const Schedules shifted = SharedWorld(
      Collective::kAllReduce, 3, 0,
      {{Barrier(), ReduceInto({Input(0, 2), Of(1, Input(0, 2))}, Output(0, 2), {Of(1, Output(1, 2))}), Barrier()},
       {Barrier(), Barrier()}});
  EXPECT_THAT(Verify(shifted, true), IsFault("has a source and a target that overlap"));
  EXPECT_THAT(Verify(shifted, false), IsFault("where block"));
}

TEST(VerifierInSharedMemory, RefusesStagedSchedulesThatCannotGoInRounds) {
  const auto staged = [](std::vector<std::vector<Step>> steps) {
    Schedules all = SharedWorld(Collective::kAllReduce, 2, 2, std::move(steps));
    for (Schedule& schedule : all) schedule.algorithm = Algorithm::kStaged;
    return all;
  };
  const auto fault = [&](Step step) { return Verify(staged({{step, Barrier()}, {Barrier()}}), false); };
  EXPECT_THAT(fault(Copy(Of(1, Input(0)), Output(0))),
              IsFault("touches another rank's input or output, in a staged schedule"));
  EXPECT_THAT(fault(Copy(Input(0), Of(1, Output(0)))),
              IsFault("touches another rank's input or output, in a staged schedule"));
  EXPECT_THAT(fault(Copy(Input(0, 2), Output(0, 2))),
              IsFault("has an operand of several blocks, in a staged schedule"));
  EXPECT_THAT(fault(Copy(Of(1, Scratch(2)), Output(0))),
              IsFault("uses rank 1's scratch[2], which is outside the scratch"));
  const Step share = Share(Input(0), Scratch(0, 0, 2));
  EXPECT_THAT(Verify(staged({{share}, {share}}), false), IsFault("shares, in a staged schedule"));
  EXPECT_THAT(Verify(staged({{}, {}}), false), StatusIs(kInternal, "a staged schedule of 1 phases"));
  EXPECT_THAT(Verify(staged({{Barrier(), Barrier(), Barrier()}, {}}), false),
              StatusIs(kInternal, "a staged schedule of 4 phases"));
  Schedules all = staged({{Barrier()}, {Barrier()}});
  all[1].scratch_blocks = 1;
  EXPECT_THAT(Verify(all, false), StatusIs(kInternal, "rank 1 has 1 blocks of scratch on a stage, and rank 0 2"));
}

TEST(VerifierInSharedMemory, RefusesWhatIsTakenFromAStageBeforeItIsThere) {
  for (const Algorithm algorithm : {Algorithm::kStaged, Algorithm::kStagedTwoShot}) {
    Schedules all = BuildAll(Collective::kAllReduce, algorithm, 3);
    auto& steps = all[1].steps;
    const auto barrier =
        std::find_if(steps.begin(), steps.end(), [](const Step& step) { return step.kind == Step::Kind::kBarrier; });
    std::swap(*barrier, *(barrier + 1));
    EXPECT_THAT(Verify(all, false), IsFault("there is no barrier between"));
  }
}

TEST(VerifierInSharedMemory, RefusesMemoryThatAnotherRankDoesNotHave) {
  const auto fault = [](Collective collective, int blocks, Step step) {
    return Verify(SharedWorld(collective, blocks, 0, {{Barrier(), step, Barrier()}, {Barrier(), Barrier()}}), false);
  };
  EXPECT_THAT(fault(Collective::kBroadcast, 1, Copy(Of(1, Input(0)), Output(0))),
              IsFault("uses rank 1's input[0], which is there on the root alone"));
  EXPECT_THAT(fault(Collective::kReduce, 1, Copy(Input(0), Of(1, Output(0)))),
              IsFault("uses rank 1's output[0], which is there on the root alone"));
  EXPECT_THAT(fault(Collective::kAllGather, 2, Copy(Of(1, Input(0)), Output(0))),
              IsFault("uses rank 1's input[0], which is another rank's"));
  EXPECT_THAT(fault(Collective::kReduceScatter, 2, Copy(Input(0), Of(1, Output(0)))),
              IsFault("uses rank 1's output[0], which is another rank's"));
}

TEST(VerifierInSharedMemory, KeepsItsStepsOutOfOtherSchedules) {
  const auto fault = [](Step step) { return Verify(World(Collective::kAllReduce, 1, 2, {{step}, {step}}), false); };
  EXPECT_THAT(fault(Barrier()), IsFault("is a barrier, in a schedule of messages"));
  EXPECT_THAT(fault(Share(Input(0), Scratch(0, 0, 2))), IsFault("is a barrier, in a schedule"));
  EXPECT_THAT(fault(Copy(Of(1, Input(0)), Output(0))), IsFault("touches another rank's memory"));
  EXPECT_THAT(fault(ReduceInto({Input(0), Scratch(0)}, Output(0), {Scratch(1)})), IsFault("has more than one target"));
}

TEST(VerifierInSharedMemory, RefusesABarrierWithoutItsStep) {
  Schedules all = SharedWorld(Collective::kBarrier, 0, 0, {{}, {}, {}});
  EXPECT_THAT(Verify(all, false), IsFault("rank 0 may leave the barrier before rank 1 has entered it"));
  for (Schedule& schedule : all) schedule.steps.push_back(Barrier());
  LOCKSTEP_EXPECT_OK(Verify(all, false));
}

}  // namespace
}  // namespace lockstep::schedule_testing
