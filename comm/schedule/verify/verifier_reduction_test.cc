// What the verifier refuses in reductions: terms twice, missing, or in an order that gives other bits.

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

namespace lockstep {
namespace {

using schedule_testing::Copy;
using schedule_testing::Input;
using schedule_testing::Output;
using schedule_testing::Receive;
using schedule_testing::ReceiveReduce;
using schedule_testing::Reduce;
using schedule_testing::ReduceMany;
using schedule_testing::Scratch;
using schedule_testing::Send;
using schedule_testing::World;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

using Schedules = std::vector<Schedule>;

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
              StatusIs(kInternal, HasSubstr("rank 2: output[0] ends as (r0+r2+r1) of block 0, on rank 0 as (r0+r1+r2): "
                                            "the bits may differ")));
  // One by one, each sum is rounded: in the order of the ranks too.
  Schedules all = Collecting({Scratch(0), Scratch(1), Input(0)});
  all[2].steps.pop_back();
  all[2].steps.push_back(Copy(Scratch(0), Output(0), {0, 1, 2}));
  all[2].steps.push_back(Reduce(Scratch(1), Output(0), {3, 4}));
  all[2].steps.push_back(Reduce(Input(0), Output(0), {5}));
  EXPECT_THAT(Verify(all, false),
              StatusIs(kInternal, HasSubstr("ends as ((r0+r1)+r2) of block 0, on rank 0 as (r0+r1+r2)")));
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
      StatusIs(kInternal, AllOf(StartsWith("rank 2, step #4 (reduce_many output[0] = scratch[0] op scratch[0] op "
                                           "input[0], after #0 #1 #2 #3)"),
                                HasSubstr("adds the contribution of rank 0 a second time"))));
  EXPECT_THAT(fault({Scratch(0), Input(0)}), StatusIs(kInternal, HasSubstr("without the contribution of rank 1")));
  EXPECT_THAT(fault({Scratch(0)}), StatusIs(kInternal, HasSubstr("has 1 terms")));
  EXPECT_THAT(fault({}), StatusIs(kInternal, HasSubstr("has 0 terms")));
  EXPECT_THAT(fault({Scratch(0), Output(0), Input(0)}),
              StatusIs(kInternal, HasSubstr("reads memory that was never written")));
  EXPECT_THAT(fault({Scratch(0), Scratch(2), Input(0)}), StatusIs(kInternal, HasSubstr("outside the scratch")));
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

}  // namespace
}  // namespace lockstep
