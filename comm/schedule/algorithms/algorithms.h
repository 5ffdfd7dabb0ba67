// Shared by the algorithm files: the list of steps under construction, and the entry points.
//
// An entry point is a pure function of one rank's place in the world. It fills in blocks, scratch_blocks and steps.
// BuildSchedule checks the place beforehand, handles a world of one, and fills in the rest.

#ifndef COMM_SCHEDULE_ALGORITHMS_ALGORITHMS_H_
#define COMM_SCHEDULE_ALGORITHMS_ALGORITHMS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "comm/schedule/schedule.h"

namespace lockstep::algorithms {

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

// A list of steps that computes `after` itself: each step waits for exactly those earlier ones with which it would otherwise race,
// in place or out of place, except those that it already waits for through others. The verifier asks for no more.
class OrderedSteps {
 public:
  // In place, input and output are one memory; in an all-to-all they are two.
  enum class InPlace { kOneMemory, kTwoMemories };

  explicit OrderedSteps(InPlace in_place = InPlace::kOneMemory) : in_place_(in_place) {}

  // Sets the round of the sends that follow. The first is 0.
  void InRound(int round) { round_ = round; }
  void NextRound() { ++round_; }

  void Send(Operand source, int peer);
  void Receive(int peer, Operand target);
  void ReceiveReduce(int peer, Operand source, Operand target);
  void Copy(Operand source, Operand target);
  void ReduceMany(std::vector<Operand> terms, Operand target);
  // The step that was added last also waits for this one, for another reason than its memory.
  void AlsoAfter(int32_t earlier) { schedule_.steps.back().after.push_back(earlier); }

  // Ends the construction.
  Schedule Finish(int blocks, int scratch_blocks);

 private:
  // The steps that accessed a block of memory.
  struct Location {
    int32_t writer = Step::kNone;  // the last one
    std::vector<int32_t> readers;  // since then
  };
  // By window, by block.
  using Memory = std::array<std::vector<Location>, 3>;
  enum Mode { kOutOfPlace, kInPlace, kModes };

  static Step Make(Step::Kind kind, int peer, Operand source, Operand target);

  void Append(Step step, bool reads_source, bool writes_target);
  Location& At(Mode mode, Window window, int block);
  // Removes those that others in `after` wait for.
  void Prune(std::vector<int32_t>* after);

  const InPlace in_place_;
  Schedule schedule_;
  int32_t round_ = 0;
  std::array<Memory, kModes> memory_;
  std::vector<int32_t> visited_;  // by step: the last step for which Prune visited it
};

// RingAllReduce() and so on, one for each schedule of the table. All take a size of at least 2.
#define LOCKSTEP_SCHEDULE(collective, id, properties, proved) Schedule id##collective(const Place& place);
#include "comm/schedule/algorithms.inc"

}  // namespace lockstep::algorithms

#endif  // COMM_SCHEDULE_ALGORITHMS_ALGORITHMS_H_
