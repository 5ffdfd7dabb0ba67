// Shared by the algorithm files: the list of steps under construction, and the entry points.
//
// An entry point is a pure function of one rank's place in the world. It fills in blocks, scratch_blocks and steps.
// BuildSchedule checks the place beforehand, handles a world of one, and fills in the rest.

#ifndef COMM_SCHEDULE_ALGORITHMS_ALGORITHMS_H_
#define COMM_SCHEDULE_ALGORITHMS_ALGORITHMS_H_

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "comm/schedule/schedule.h"

namespace lockstep {
namespace algorithms {

struct Place {
  int rank = 0;
  int size = 1;
  int root = 0;
  const Topology* topology = nullptr;  // of `size` ranks, or empty

  // The rank `distance` places further round the ring; negative distances go back. |distance| <= size.
  int Neighbour(int distance) const { return (rank + distance + size) % size; }
  // The place in a numbering that begins at the root, and back.
  int relative() const { return (rank - root + size) % size; }
  int absolute(int relative) const { return (relative + root) % size; }
};

inline Operand Input(int block) { return {Window::kInput, block, 1}; }
inline Operand Output(int block) { return {Window::kOutput, block, 1}; }
// With room for block `holds` of the vector.
inline Operand Scratch(int block, int holds) { return {Window::kScratch, block, 1, holds}; }
// The operand of a message without payload, and of a side that a step does not have.
inline Operand Nothing() { return {Window::kInput, 0, 0}; }

// How many rounds it takes to reach `size` ranks from one when each round doubles them.
inline int DoublingRounds(int size) {
  int rounds = 0;
  while (1 << rounds < size) ++rounds;
  return rounds;
}

// A list of steps whose order the algorithm gives. Each call appends a step and returns its index, for the `after`
// of later ones. Step::kNone in an `after` is skipped, so that the first round of a loop needs no case of its own.
class StepList {
 public:
  using After = std::initializer_list<int32_t>;

  // Sets the round of the sends that follow. The first is 0.
  void InRound(int round) { round_ = round; }
  void NextRound() { ++round_; }

  int32_t Send(Operand source, int peer, After after = {});
  int32_t Receive(int peer, Operand target, After after = {});
  int32_t ReceiveReduce(int peer, Operand source, Operand target, After after = {});
  int32_t Copy(Operand source, Operand target, After after = {});
  int32_t Reduce(Operand source, Operand target, After after = {});

  // Ends the construction.
  Schedule Finish(int blocks, int scratch_blocks);

 private:
  int32_t Append(Step::Kind kind, int peer, Operand source, Operand target, After after);

  Schedule schedule_;
  int32_t round_ = 0;
};

// RingAllReduce() and so on, one for each schedule of the table. All take a size of at least 2.
#define LOCKSTEP_SCHEDULE(collective, id, properties, proved) Schedule id##collective(const Place& place);
#include "comm/schedule/algorithms.inc"

}  // namespace algorithms
}  // namespace lockstep

#endif  // COMM_SCHEDULE_ALGORITHMS_ALGORITHMS_H_
