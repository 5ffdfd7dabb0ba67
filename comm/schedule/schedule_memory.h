// The memory that one rank's schedule may touch, block by block, as schedule.h defines it: which blocks of which window
// exist on this rank (in shared memory also on other ranks), and which of them are the same memory.

#ifndef COMM_SCHEDULE_SCHEDULE_MEMORY_H_
#define COMM_SCHEDULE_SCHEDULE_MEMORY_H_

#include <cstdint>

#include "comm/schedule/schedule.h"

namespace lockstep {

class ScheduleMemory {
 public:
  // `schedule` must outlive it.
  ScheduleMemory(const Schedule& schedule, bool in_place)
      : schedule_(schedule), is_one_memory_(in_place && schedule.collective != Collective::kAllToAll) {}

  // Why the rank has no such block, as the end of a sentence that begins with the block. nullptr: it has the block.
  const char* WhyAbsent(Window window, int64_t block, int32_t rank) const;
  const char* WhyAbsent(Window window, int64_t block) const { return WhyAbsent(window, block, schedule_.rank.value()); }

  // The rank whose memory the operand is.
  int32_t OwnerOf(const Operand& operand) const {
    return operand.rank == Operand::kOwn ? schedule_.rank.value() : operand.rank;
  }
  // A number for each block of a rank's memory: from 0 to locations() - 1, equal where memory is the same. The numbers are
  // the same on all ranks.
  int Location(Window window, int block) const {
    switch (window) {
      case Window::kInput:
        return block;
      case Window::kOutput:
        return is_one_memory_ ? block : schedule_.blocks + block;
      case Window::kScratch:
        break;
    }
    return 2 * schedule_.blocks + block;
  }
  int Location(const Operand& operand) const { return Location(operand.window, operand.block); }
  int locations() const { return 2 * schedule_.blocks + schedule_.scratch_blocks; }

  // Whether the step copies memory onto itself.
  bool IsVoid(const Step& step) const {
    return step.kind == Step::Kind::kCopy && OwnerOf(step.source) == OwnerOf(step.target) &&
           Location(step.source) == Location(step.target);
  }

  // Whether blocks may differ in size.
  bool HasUnequalBlocks() const {
    return schedule_.blocks > 1 && !NeedsEqualBlocks(schedule_.collective, schedule_.algorithm);
  }

 private:
  const Schedule& schedule_;
  const bool is_one_memory_;  // input and output
};

// Which operands a step of each kind has. Terms, further targets and arriving bytes are not among them.
constexpr bool ReadsSource(Step::Kind kind) {
  return kind != Step::Kind::kReceive && kind != Step::Kind::kReduceMany && kind != Step::Kind::kBarrier;
}
constexpr bool WritesTarget(Step::Kind kind) { return kind != Step::Kind::kSend && kind != Step::Kind::kBarrier; }
constexpr bool IsMessage(Step::Kind kind) {
  return kind == Step::Kind::kSend || kind == Step::Kind::kReceive || kind == Step::Kind::kReceiveReduce;
}
constexpr bool IsBarrier(Step::Kind kind) { return kind == Step::Kind::kBarrier || kind == Step::Kind::kShare; }

// The operand that tells a step's bytes. All operands of a step are of one size, except in kShare, whose source this is.
const Operand& SizingOperand(const Step& step);

// Whether chunk c of `step`, which waits for `earlier`, may start when chunk c of that one is complete, rather than all of it.
// Chunk c of a step touches chunk c of each of its operands. So it may if all memory that both touch is equal block ranges, which are
// cut alike. Steps that share no memory are ordered for an unknown reason: then it may not.
bool IsChunkwise(const Step& step, const Step& earlier);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_SCHEDULE_MEMORY_H_
