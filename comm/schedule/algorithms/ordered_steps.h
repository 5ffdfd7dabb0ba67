// A list of steps that computes `after` itself.
//
// For algorithms whose steps touch memory in too many patterns to order them by hand. Each step waits for exactly those earlier
// ones with which it would otherwise race, in place or out of place, except those that it already waits for through others. The
// verifier asks for no more.

#ifndef COMM_SCHEDULE_ALGORITHMS_ORDERED_STEPS_H_
#define COMM_SCHEDULE_ALGORITHMS_ORDERED_STEPS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "comm/schedule/schedule.h"

namespace lockstep {
namespace algorithms {

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

}  // namespace algorithms
}  // namespace lockstep

#endif  // COMM_SCHEDULE_ALGORITHMS_ORDERED_STEPS_H_
