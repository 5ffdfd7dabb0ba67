// What the staged algorithms are for, counted, and a proof of what comm/schedule/stage.h says of rounds that overlap. That one round
// is right is proved in comm/schedule/verify/schedule_proofs_test.cc.

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/stage.h"
#include "comm/schedule/verify/expression.h"
#include "comm/schedule/verify/schedule_checks.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/schedule/verify/symbolic_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct Pair {
  Collective collective;
  Algorithm algorithm;
};
constexpr Pair kStagedPairs[] = {{Collective::kAllReduce, Algorithm::kStaged},
                                 {Collective::kAllReduce, Algorithm::kStagedTwoShot},
                                 {Collective::kAllGather, Algorithm::kStaged},
                                 {Collective::kReduceScatter, Algorithm::kStaged},
                                 {Collective::kAllToAll, Algorithm::kStaged}};

TEST(Staged, TakesFromItsPeersStageAndNothingElse) {
  for (const auto& [collective, algorithm] : kStagedPairs) {
    for (const Schedule& schedule : BuildAll(collective, algorithm, 5)) {
      int barriers = 0;
      for (const Step& step : schedule.steps) {
        if (step.kind == Step::Kind::kBarrier) ++barriers;
        std::vector<Operand> operands = step.terms;
        operands.insert(operands.end(), step.more_targets.begin(), step.more_targets.end());
        operands.insert(operands.end(), {step.source, step.target});
        for (const Operand& operand : operands) {
          EXPECT_TRUE(operand.rank == Operand::kOwn || operand.window == Window::kScratch) << ToString(schedule);
        }
      }
      EXPECT_EQ(barriers, algorithm == Algorithm::kStagedTwoShot ? 2 : 1);
    }
  }
}

// What two ranks do who pass an all-reduce through mailboxes: of every two blocks one is copied in and out, and one added.
TEST(Staged, TwoShotsReuseThePlaceThatWasRead) {
  EXPECT_EQ(ToString(BuildAll(Collective::kAllReduce, Algorithm::kStagedTwoShot, 2)[0]),
            "all_reduce staged_two_shot, rank 0 of 2, 2 blocks, 2 of scratch\n"
            "#0 copy scratch[1] for [1] = input[1]\n"
            "#1 barrier\n"
            "#2 reduce_many output[0], rank 1's scratch[0] = input[0] op rank 1's scratch[0]\n"
            "#3 barrier\n"
            "#4 copy output[1] = scratch[1] for [1]\n");
}

// What the executor makes of calls one behind the other, written out as one schedule: piece p of block b is block
// b * pieces + p, and pieces are numbered through, over all calls.
class Rounds {
 public:
  Rounds(Schedule schedule, std::vector<int> rounds_of_calls, int slots)
      : prepared_(std::move(schedule)), rounds_of_calls_(std::move(rounds_of_calls)), slots_(slots) {
    for (const int rounds : rounds_of_calls_) pieces_ += rounds;
  }

  Schedule WrittenOut() const {
    const Schedule& round = prepared_.schedule();
    Schedule all = round;
    all.steps.clear();
    all.blocks = round.blocks * pieces_;
    all.scratch_blocks = round.scratch_blocks * slots_;
    int first_piece = 0;
    for (const int rounds : rounds_of_calls_) {
      const int ticks = rounds + prepared_.phases() - 1;
      for (int tick = 0; tick < ticks; ++tick) {
        if (tick > 0) all.steps.push_back(schedule_testing::Barrier());
        for (int phase = 0; phase < prepared_.phases(); ++phase) {
          if (tick >= phase && tick - phase < rounds) AddPhase(phase, first_piece + tick - phase, &all);
        }
      }
      first_piece += rounds;
    }
    return all;
  }

 private:
  void AddPhase(int phase, int piece, Schedule* all) const {
    for (int i = prepared_.phase(phase).begin; i < prepared_.phase(phase).end; ++i) {
      Step step = prepared_.step(i);
      const auto move = [&](Operand* operand) {
        const bool is_scratch = operand->window == Window::kScratch;
        if (is_scratch) operand->block += prepared_.schedule().scratch_blocks * (piece % slots_);
        if (is_scratch) operand->holds = operand->holds * pieces_ + piece;
        if (!is_scratch) operand->block = operand->block * pieces_ + piece;
      };
      if (step.kind == Step::Kind::kCopy) move(&step.source);
      move(&step.target);
      for (Operand& term : step.terms) move(&term);
      for (Operand& target : step.more_targets) move(&target);
      all->steps.push_back(std::move(step));
    }
  }

  const PreparedSchedule prepared_;
  const std::vector<int> rounds_of_calls_;
  const int slots_;
  int pieces_ = 0;
};

// All-reduces of several rounds, all of whose outputs are to be reduced in rank order.
absl::Status ProveRounds(Algorithm algorithm, int size, const std::vector<int>& rounds_of_calls, int slots,
                         bool in_place) {
  std::vector<Schedule> all;
  for (Schedule& schedule : BuildAll(Collective::kAllReduce, algorithm, size)) {
    all.push_back(Rounds(std::move(schedule), rounds_of_calls, slots).WrittenOut());
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckBarriers(all, in_place));
  SymbolicRun run(all, in_place);
  LOCKSTEP_RETURN_IF_ERROR(run.Run());
  for (int rank = 0; rank < size; ++rank) {
    for (int block = 0; block < all[rank].blocks; ++block) {
      const auto value = run.Output(rank, block);
      const bool whole = value != ExpressionTable::kUndefined && run.expressions().MissingLeaf(value) < 0;
      if (whole && run.expressions().ReducesInRankOrder(value) && run.expressions().block(value) == block) continue;
      return absl::InternalError(absl::StrCat("rank ", rank, ": output[", block, "]"));
    }
  }
  return absl::OkStatus();
}

TEST(Staged, RoundsThatOverlapAreProvedToo) {
  for (const Algorithm algorithm : {Algorithm::kStaged, Algorithm::kStagedTwoShot}) {
    for (int size = 2; size <= 9; ++size) {
      for (const std::vector<int>& rounds : {std::vector<int>{1}, {2}, {7}, {1, 1, 1, 1, 1}, {4, 1, 3}, {2, 2, 5}}) {
        for (const bool in_place : {false, true}) {
          EXPECT_THAT(ProveRounds(algorithm, size, rounds, kStageSlots, in_place), IsOk())
              << Name(algorithm) << ", " << size << " ranks";
        }
      }
    }
  }
}

TEST(Staged, RoundsNeedAsManySlotsAsPhases) {
  for (const bool in_place : {false, true}) {
    EXPECT_THAT(ProveRounds(Algorithm::kStaged, 3, {2}, 1, in_place),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("races with")));
    EXPECT_THAT(ProveRounds(Algorithm::kStaged, 3, {1, 1}, 1, in_place),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("races with")));
    EXPECT_THAT(ProveRounds(Algorithm::kStagedTwoShot, 3, {3}, 2, in_place),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("races with")));
  }
}

}  // namespace
}  // namespace lockstep
