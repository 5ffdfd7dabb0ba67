// For tests of schedules: whole worlds of them, built by the library or written by hand.

#ifndef COMM_SCHEDULE_VERIFY_SCHEDULE_TESTING_H_
#define COMM_SCHEDULE_VERIFY_SCHEDULE_TESTING_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"

namespace lockstep {

// Every rank's schedule, by rank. A test failure if one cannot be built.
std::vector<Schedule> BuildAll(Collective collective, Algorithm algorithm, int size, int root = 0,
                               const Topology& topology = {});

std::vector<Collective> AllCollectives();

// Rank r on host r / ranks_per_host.
Topology Consecutive(int size, int ranks_per_host);
// Rank r on host r % hosts, as launchers place ranks by node.
Topology RoundRobin(int size, int hosts);
// Hosts of different sizes, whose ranks are scattered over the world: equal for equal arguments.
Topology Strewn(int size, int hosts);

// Worlds written by hand: by rank, a list of steps, each naming those that it waits for.
namespace schedule_testing {

using After = std::initializer_list<int32_t>;

Operand Input(int block, int blocks = 1);
Operand Output(int block, int blocks = 1);
Operand Scratch(int block, int holds = 0, int blocks = 1);

Step Send(Operand source, int peer, After after = {});
Step Receive(int peer, Operand target, After after = {});
Step ReceiveReduce(int peer, Operand source, Operand target, After after = {});
Step Copy(Operand source, Operand target, After after = {});
Step ReduceMany(std::vector<Operand> terms, Operand target, After after = {});
// target = target op source
Step Reduce(Operand source, Operand target, After after = {});

// In shared memory: the same operand in another rank's window, and the steps that only such schedules have.
Operand Of(int rank, Operand operand);
Step Barrier();
Step Share(Operand source, Operand target);
Step ReduceInto(std::vector<Operand> terms, Operand target, std::vector<Operand> more_targets);

// With rank 0 as root, and of no algorithm.
std::vector<Schedule> World(Collective collective, int blocks, int scratch_blocks,
                            std::vector<std::vector<Step>> steps);

// What the verifier returns for a fault: INTERNAL with this text in it.
inline auto IsFault(const std::string& text) {
  return StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr(text));
}

// Takes a step out of a list, and out of every `after`.
void Drop(Schedule* schedule, int index);

}  // namespace schedule_testing

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_SCHEDULE_TESTING_H_
