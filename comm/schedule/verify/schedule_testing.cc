#include "comm/schedule/verify/schedule_testing.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/rank.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

template <typename HostOf>
Topology Place(int size, HostOf host_of) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of_rank.push_back(host_of(rank));
  return topology;
}

}  // namespace

std::vector<Schedule> BuildAll(Collective collective, Algorithm algorithm, int size, int root,
                               const Topology& topology) {
  std::vector<Schedule> all;
  for (int rank = 0; rank < size; ++rank) {
    absl::StatusOr<Schedule> schedule = BuildSchedule(collective, algorithm, Rank(rank), size, Rank(root), topology);
    LOCKSTEP_EXPECT_OK(schedule);
    if (schedule.ok()) all.push_back(*std::move(schedule));
  }
  return all;
}

std::vector<Collective> AllCollectives() {
  std::vector<Collective> all;
  for (int index = 0; index < kCollectiveCount; ++index) all.push_back(static_cast<Collective>(index));
  return all;
}

Topology Consecutive(int size, int ranks_per_host) {
  return Place(size, [&](int rank) { return rank / ranks_per_host; });
}

Topology RoundRobin(int size, int hosts) {
  return Place(size, [&](int rank) { return rank % hosts; });
}

Topology Strewn(int size, int hosts) {
  uint32_t state = 2463534242u + static_cast<uint32_t>(size * 64 + hosts);  // xorshift
  return Place(size, [&](int) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return static_cast<int32_t>(state % hosts) * 1000;
  });
}

namespace schedule_testing {
namespace {

Step Make(Step::Kind kind, int peer, Operand source, Operand target, After after) {
  Step step;
  step.kind = kind;
  step.peer = Rank(peer);
  step.source = source;
  step.target = target;
  step.after.assign(after.begin(), after.end());
  return step;
}

}  // namespace

Operand Input(int block, int blocks) { return {Window::kInput, block, blocks}; }
Operand Output(int block, int blocks) { return {Window::kOutput, block, blocks}; }
Operand Scratch(int block, int holds, int blocks) { return {Window::kScratch, block, blocks, holds}; }

Step Send(Operand source, int peer, After after) { return Make(Step::Kind::kSend, peer, source, Input(0, 0), after); }
Step Receive(int peer, Operand target, After after) {
  return Make(Step::Kind::kReceive, peer, Input(0, 0), target, after);
}
Step ReceiveReduce(int peer, Operand source, Operand target, After after) {
  return Make(Step::Kind::kReceiveReduce, peer, source, target, after);
}
Step Copy(Operand source, Operand target, After after) { return Make(Step::Kind::kCopy, 0, source, target, after); }
Step ReduceMany(std::vector<Operand> terms, Operand target, After after) {
  Step step = Make(Step::Kind::kReduceMany, 0, Input(0, 0), target, after);
  step.terms = std::move(terms);
  return step;
}

Step Reduce(Operand source, Operand target, After after) { return ReduceMany({target, source}, target, after); }

Operand Of(int rank, Operand operand) {
  operand.rank = rank;
  return operand;
}
Step Barrier() { return Make(Step::Kind::kBarrier, 0, Input(0, 0), Input(0, 0), {}); }
Step Share(Operand source, Operand target) { return Make(Step::Kind::kShare, 0, source, target, {}); }
Step ReduceInto(std::vector<Operand> terms, Operand target, std::vector<Operand> more_targets) {
  Step step = ReduceMany(std::move(terms), target);
  step.more_targets = std::move(more_targets);
  return step;
}

std::vector<Schedule> World(Collective collective, int blocks, int scratch_blocks,
                            std::vector<std::vector<Step>> steps) {
  std::vector<Schedule> all(steps.size());
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

void Drop(Schedule* schedule, int index) {
  schedule->steps.erase(schedule->steps.begin() + index);
  for (Step& step : schedule->steps) {
    step.after.erase(std::remove(step.after.begin(), step.after.end(), index), step.after.end());
    for (int32_t& after : step.after) {
      if (after > index) --after;
    }
  }
}

}  // namespace schedule_testing

}  // namespace lockstep
