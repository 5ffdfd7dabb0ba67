#include "comm/plan/prepared_schedule.h"

#include <map>
#include <utility>
#include <vector>

#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/schedule_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kNone = Step::kNone;

Operand Input(int block, int blocks = 1) { return {Window::kInput, block, blocks}; }
Operand Output(int block, int blocks = 1) { return {Window::kOutput, block, blocks}; }
Operand Scratch(int block, int blocks = 1) { return {Window::kScratch, block, blocks}; }

Step MakeStep(Step::Kind kind, int peer, Operand source, Operand target, Step::After after) {
  Step step;
  step.kind = kind;
  step.peer = Rank(peer);
  step.source = source;
  step.target = target;
  step.after = std::move(after);
  return step;
}

Step Send(int peer, Operand source, Step::After after = {}) {
  return MakeStep(Step::Kind::kSend, peer, source, {}, after);
}
Step Receive(int peer, Operand target, Step::After after = {}) {
  return MakeStep(Step::Kind::kReceive, peer, {}, target, after);
}
Step ReceiveReduce(int peer, Operand source, Operand target, Step::After after = {}) {
  return MakeStep(Step::Kind::kReceiveReduce, peer, source, target, after);
}
Step Copy(Operand source, Operand target, Step::After after = {}) {
  return MakeStep(Step::Kind::kCopy, 0, source, target, after);
}

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
      Prepare({Send(1, Input(0)), Receive(1, Output(0)), Send(2, Input(0)), Copy(Input(1), Output(1)),
               Send(1, Input(1)), ReceiveReduce(1, Input(2), Output(2)), Send(1, Input(2))});
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
      {Receive(1, Output(0)), Send(2, Output(0), {0}), Copy(Output(0), Output(1), {0}), Send(2, Output(1), {2, 1, 0})});
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
  EXPECT_TRUE(Chunkwise(Receive(1, Output(2)), Send(2, Output(2))));
  EXPECT_TRUE(Chunkwise(ReceiveReduce(1, Input(2), Output(2)), Send(2, Output(2))));
  EXPECT_TRUE(Chunkwise(Receive(1, Scratch(1)), ReceiveReduce(2, Scratch(1), Scratch(1))));
  EXPECT_TRUE(Chunkwise(Receive(1, Output(1, 2)), Send(2, Output(1, 2))));
  // In place they meet in the same memory, out of place not at all.
  EXPECT_TRUE(Chunkwise(Send(1, Input(2)), Receive(2, Output(2))));
}

TEST(PreparedSchedule, WhatMeetsElsewhereWaitsForTheWhole) {
  EXPECT_FALSE(Chunkwise(Receive(1, Output(1)), Send(2, Output(0, 2)))) << "a part of what is sent";
  EXPECT_FALSE(Chunkwise(Receive(1, Output(0, 2)), Send(2, Output(1)))) << "more than what is sent";
  EXPECT_FALSE(Chunkwise(Receive(1, Output(1)), Send(2, Input(0, 2)))) << "in place, a part of what is sent";
  EXPECT_FALSE(Chunkwise(Receive(1, Output(0)), Send(2, Output(1)))) << "no memory in common";
  EXPECT_FALSE(Chunkwise(Receive(1, Scratch(0)), Send(2, Output(0)))) << "no memory in common";
}

TEST(PreparedSchedule, BytesAreCountedByTheTargetWhereThereIsOne) {
  EXPECT_EQ(SizingOperand(Send(1, Scratch(3))), Scratch(3));
  EXPECT_EQ(SizingOperand(Receive(1, Output(3))), Output(3));
  EXPECT_EQ(SizingOperand(Copy(Input(2), Scratch(0))), Scratch(0));
}

// For every schedule there is: lanes are the messages in list order, dependents the reverse of `after`.
TEST(PreparedSchedule, LinksOfEveryScheduleAreConsistent) {
  for (int c = 0; c < kCollectiveCount; ++c) {
    const Collective collective = static_cast<Collective>(c);
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      for (const int size : {1, 2, 3, 4, 5, 8, 13}) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Schedule built,
                                      BuildSchedule(collective, algorithm, Rank(size / 2), size, Rank(0)));
        const PreparedSchedule schedule(std::move(built));
        std::map<std::pair<Rank, bool>, int32_t> last;
        std::vector<std::vector<int32_t>> dependents(schedule.steps());
        for (int i = 0; i < schedule.steps(); ++i) {
          const Step& step = schedule.step(i);
          for (const int32_t earlier : step.after) {
            dependents[earlier].push_back(i);
          }
          if (!IsMessage(step.kind)) continue;
          const auto lane = last.emplace(std::make_pair(step.peer, step.kind == Step::Kind::kSend), kNone).first;
          EXPECT_EQ(schedule.links(i).lane_previous, lane->second);
          if (lane->second != kNone) {
            EXPECT_EQ(schedule.links(lane->second).lane_next, i);
          }
          lane->second = i;
        }
        for (int i = 0; i < schedule.steps(); ++i) {
          EXPECT_THAT(schedule.dependents(i), ::testing::ElementsAreArray(dependents[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
