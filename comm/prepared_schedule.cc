#include "comm/prepared_schedule.h"

#include <map>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "comm/schedule_memory.h"

namespace lockstep {
namespace {

absl::InlinedVector<Operand, 2> Operands(const Step& step) {
  absl::InlinedVector<Operand, 2> operands;
  if (UsesSource(step)) operands.push_back(step.source);
  if (UsesTarget(step)) operands.push_back(step.target);
  operands.insert(operands.end(), step.terms.begin(), step.terms.end());
  return operands;
}

// In place, input and output are the same memory under the same block numbers.
bool MayAlias(Window a, Window b) { return a == b || (a != Window::kScratch && b != Window::kScratch); }

bool SameBlocks(const Operand& a, const Operand& b) { return a.block == b.block && a.blocks == b.blocks; }

bool ShareBlock(const Operand& a, const Operand& b) {
  return a.block < b.block + b.blocks && b.block < a.block + a.blocks;
}

// Chunk c of a step touches chunk c of each of its operands. So waiting chunk by chunk is enough when the two steps
// meet in equal block ranges only, and each is cut alike. Steps that share no memory are ordered for a reason we do not
// know: whole.
bool Chunkwise(const Step& step, const Step& earlier) {
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

}  // namespace

const Operand& SizingOperand(const Step& step) {
  return UsesTarget(step) && step.kind != Step::Kind::kShare ? step.target : step.source;
}

PreparedSchedule::PreparedSchedule(Schedule schedule) : schedule_(std::move(schedule)) {
  const int count = steps();
  links_.resize(count);
  std::vector<std::vector<int32_t>> dependents(count);
  std::map<std::pair<Rank, bool>, int32_t> lane_last;  // by peer and direction
  for (int i = 0; i < count; ++i) {
    const Step& current = step(i);
    for (const int32_t earlier : current.after) {
      dependents[earlier].push_back(i);
      links_[i].chunkwise.push_back(Chunkwise(current, step(earlier)));
    }
    if (!IsMessage(current)) continue;
    const auto lane = std::make_pair(current.peer, current.kind == Step::Kind::kSend);
    if (auto it = lane_last.find(lane); it != lane_last.end()) {
      links_[i].lane_previous = it->second;
      links_[it->second].lane_next = i;
    }
    lane_last[lane] = i;
  }
  if (IsByMemory(schedule_.algorithm)) {
    phases_.emplace_back();
    for (int i = 0; i < count; ++i) {
      if (!IsMeeting(step(i).kind)) continue;
      phases_.back().end = i;
      phases_.push_back({i + 1, 0});
    }
    phases_.back().end = count;
  }
  dependents_begin_.reserve(count + 1);
  dependents_begin_.push_back(0);
  for (const std::vector<int32_t>& list : dependents) {
    dependents_.insert(dependents_.end(), list.begin(), list.end());
    dependents_begin_.push_back(static_cast<int32_t>(dependents_.size()));
  }
}

}  // namespace lockstep
