// A list of steps that orders itself.
//
// For algorithms whose steps touch memory in too many patterns to say by hand what waits for what: each step waits for
// exactly those earlier ones with which it would otherwise race, in place or out of place, less those that it waits for
// through others. That is the order that the verifier asks for, no more.

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
  // What input and output are in place: one memory, or two all the same (all-to-all).
  enum class InPlace { kOneMemory, kTwoMemories };

  explicit OrderedSteps(InPlace in_place = InPlace::kOneMemory) : in_place_(in_place) {}

  // What is sent from here on is of this round, or of the next. The first is 0.
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
  // What has happened to a block of memory.
  struct Location {
    int32_t writer = Step::kNone;  // the last
    std::vector<int32_t> readers;  // since then
  };
  // The memory as it is out of place, or in place: by window, by block.
  using Memory = std::array<std::vector<Location>, 3>;
  enum Mode { kOutOfPlace, kInPlace, kModes };

  static Step Make(Step::Kind kind, int peer, Operand source, Operand target);

  void Append(Step step, bool reads_source, bool writes_target);
  Location& At(Mode mode, Window window, int block);
  // Leaves out what others among `after` wait for.
  void Prune(std::vector<int32_t>* after);

  const InPlace in_place_;
  Schedule schedule_;
  int32_t round_ = 0;
  std::array<Memory, kModes> memory_;
  std::vector<int32_t> visited_;  // by step: the last step for which Prune came by
};

}  // namespace algorithms
}  // namespace lockstep

#endif  // COMM_SCHEDULE_ALGORITHMS_ORDERED_STEPS_H_
