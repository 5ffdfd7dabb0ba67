// Prepared schedules, and plans of them.

#include "comm/plan/prepared_schedule.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/rank.h"
#include "comm/plan/execution_plan.h"
#include "comm/schedule/block_layout.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::schedule_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kNone = Step::kNone;

PreparedSchedule Prepare(std::vector<Step> steps) {
  Schedule schedule;
  schedule.size = 4;
  schedule.blocks = 4;
  schedule.scratch_blocks = 4;
  schedule.steps = std::move(steps);
  return PreparedSchedule(std::move(schedule));
}

TEST(PreparedSchedule, NothingToDoIsASchedule) {
  const PreparedSchedule schedule = Prepare({});
  EXPECT_EQ(schedule.steps(), 0);
}

TEST(PreparedSchedule, MessagesOfOneDirectionWithOnePeerFormALane) {
  const PreparedSchedule schedule =
      Prepare({Send(Input(0), 1), Receive(1, Output(0)), Send(Input(0), 2), Copy(Input(1), Output(1)),
               Send(Input(1), 1), ReceiveReduce(1, Input(2), Output(2)), Send(Input(2), 1)});
  const auto lane = [&](int i) { return std::make_pair(schedule.links(i).lane_previous, schedule.links(i).lane_next); };
  EXPECT_EQ(lane(0), std::make_pair(kNone, 4));
  EXPECT_EQ(lane(1), std::make_pair(kNone, 5));
  EXPECT_EQ(lane(2), std::make_pair(kNone, kNone));
  EXPECT_EQ(lane(3), std::make_pair(kNone, kNone)) << "a copy is no message";
  EXPECT_EQ(lane(4), std::make_pair(0, 6));
  EXPECT_EQ(lane(5), std::make_pair(1, kNone));
  EXPECT_EQ(lane(6), std::make_pair(4, kNone));
}

TEST(PreparedSchedule, DependentsAreThoseThatNameAStep) {
  const PreparedSchedule schedule = Prepare(
      {Receive(1, Output(0)), Send(Output(0), 2, {0}), Copy(Output(0), Output(1), {0}), Send(Output(1), 2, {2, 1, 0})});
  EXPECT_THAT(schedule.dependents(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(schedule.dependents(1), ElementsAre(3));
  EXPECT_THAT(schedule.dependents(2), ElementsAre(3));
  EXPECT_THAT(schedule.dependents(3), IsEmpty());
}

// Whether the second step may follow the first chunk by chunk.
bool Chunkwise(const Step& earlier, Step step) {
  step.after = {0};
  const PreparedSchedule schedule = Prepare({earlier, step});
  return schedule.links(1).chunkwise[0];
}

TEST(PreparedSchedule, WhatPassesOnABlockGoesChunkByChunk) {
  EXPECT_TRUE(Chunkwise(Receive(1, Output(2)), Send(Output(2), 2)));
  EXPECT_TRUE(Chunkwise(ReceiveReduce(1, Input(2), Output(2)), Send(Output(2), 2)));
  EXPECT_TRUE(Chunkwise(Receive(1, Scratch(1)), ReceiveReduce(2, Scratch(1), Scratch(1))));
  EXPECT_TRUE(Chunkwise(Receive(1, Output(1, 2)), Send(Output(1, 2), 2)));
  // In place they meet in the same memory, out of place not at all.
  EXPECT_TRUE(Chunkwise(Send(Input(2), 1), Receive(2, Output(2))));
}

TEST(PreparedSchedule, WhatMeetsElsewhereWaitsForTheWhole) {
  EXPECT_FALSE(Chunkwise(Receive(1, Output(1)), Send(Output(0, 2), 2))) << "a part of what is sent";
  EXPECT_FALSE(Chunkwise(Receive(1, Output(0, 2)), Send(Output(1), 2))) << "more than what is sent";
  EXPECT_FALSE(Chunkwise(Receive(1, Output(1)), Send(Input(0, 2), 2))) << "in place, a part of what is sent";
  EXPECT_FALSE(Chunkwise(Receive(1, Output(0)), Send(Output(1), 2))) << "no memory in common";
  EXPECT_FALSE(Chunkwise(Receive(1, Scratch(0)), Send(Output(0), 2))) << "no memory in common";
}

TEST(PreparedSchedule, BytesAreCountedByTheTargetWhereThereIsOne) {
  EXPECT_EQ(SizingOperand(Send(Scratch(3), 1)), Scratch(3));
  EXPECT_EQ(SizingOperand(Receive(1, Output(3))), Output(3));
  EXPECT_EQ(SizingOperand(Copy(Input(2), Scratch(0))), Scratch(0));
}

// Where plans lay operands is tested with the executors, which work there.
TEST(ExecutionPlanInSharedMemory, GoesInRoundsOverAStage) {
  const auto plan_of = [](Algorithm algorithm, int64_t count) {
    ExecutionPlan::Options options;
    const auto schedule = BuildSchedule(Collective::kAllReduce, algorithm, Rank(1), 4, Rank(0));
    LOCKSTEP_EXPECT_OK(schedule);
    options.schedule = std::make_shared<const PreparedSchedule>(*schedule);
    const auto layout = BlockLayout::Split(count, sizeof(double), schedule->blocks);
    LOCKSTEP_EXPECT_OK(layout);
    options.input = options.output = *layout;
    options.element_bytes = sizeof(double);
    return ExecutionPlan(std::move(options));
  };
  const int64_t piece = StagePieceBytes(4) / sizeof(double);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 4 * piece).piece_elements(), piece);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 0).rounds(), 1);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 4 * piece).rounds(), 1);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 4 * piece + 1).rounds(), 2);
  EXPECT_EQ(plan_of(Algorithm::kStagedTwoShot, 400 * piece).rounds(), 100);
  const ExecutionPlan plan = plan_of(Algorithm::kStagedTwoShot, 400 * piece);
  EXPECT_EQ(plan.scratch_bytes(), 0) << "the stage is not the rank's own";
  EXPECT_EQ(plan.step(0).target_offset, 2 * piece * sizeof(double)) << "block 2 of a slot";
  EXPECT_EQ(plan.step(0).source_offset, 200 * piece * sizeof(double));
  EXPECT_EQ(plan_of(Algorithm::kDirect, 400 * piece).rounds(), 1);
}

}  // namespace
}  // namespace lockstep::schedule_testing
