#include "comm/schedule/schedule_memory.h"

#include "absl/container/inlined_vector.h"

namespace lockstep {
namespace {

absl::InlinedVector<Operand, 2> Operands(const Step& step) {
  absl::InlinedVector<Operand, 2> operands;
  if (ReadsSource(step.kind)) operands.push_back(step.source);
  if (WritesTarget(step.kind)) operands.push_back(step.target);
  operands.insert(operands.end(), step.terms.begin(), step.terms.end());
  return operands;
}

// In place, input and output are the same memory under the same block numbers.
bool MayAlias(Window a, Window b) { return a == b || (a != Window::kScratch && b != Window::kScratch); }

bool SameBlocks(const Operand& a, const Operand& b) { return a.block == b.block && a.blocks == b.blocks; }

bool ShareBlock(const Operand& a, const Operand& b) {
  return a.block < b.block + b.blocks && b.block < a.block + a.blocks;
}

}  // namespace

const char* ScheduleMemory::WhyAbsent(Window window, int64_t block, int32_t rank) const {
  const Collective collective = schedule_.collective;
  if (window == Window::kScratch) {
    return block < 0 || block >= schedule_.scratch_blocks ? "is outside the scratch" : nullptr;
  }
  if (block < 0 || block >= schedule_.blocks) return "is outside the vector";
  const bool is_at_root = window == Window::kInput
                              ? collective == Collective::kBroadcast || collective == Collective::kScatter
                              : collective == Collective::kReduce || collective == Collective::kGather;
  if (is_at_root && rank != schedule_.root.value()) return "is there on the root alone";
  if (IsOwnBlock(collective, window) && block != rank) return "is another rank's";
  return nullptr;
}

const Operand& SizingOperand(const Step& step) {
  return WritesTarget(step.kind) && step.kind != Step::Kind::kShare ? step.target : step.source;
}

bool IsChunkwise(const Step& step, const Step& earlier) {
  bool meet = false;
  for (const Operand& a : Operands(step)) {
    for (const Operand& b : Operands(earlier)) {
      if (!MayAlias(a.window, b.window) || !ShareBlock(a, b)) continue;
      if (!SameBlocks(a, b)) return false;
      meet = true;
    }
  }
  return meet && SizingOperand(step).blocks == SizingOperand(earlier).blocks;
}

}  // namespace lockstep
