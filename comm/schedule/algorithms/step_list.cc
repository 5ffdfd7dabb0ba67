#include <utility>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep {
namespace algorithms {

int32_t StepList::Send(Operand source, int peer, After after) {
  return Append(Step::Kind::kSend, peer, source, Nothing(), after);
}

int32_t StepList::Receive(int peer, Operand target, After after) {
  return Append(Step::Kind::kReceive, peer, Nothing(), target, after);
}

int32_t StepList::ReceiveReduce(int peer, Operand source, Operand target, After after) {
  return Append(Step::Kind::kReceiveReduce, peer, source, target, after);
}

int32_t StepList::Copy(Operand source, Operand target, After after) {
  return Append(Step::Kind::kCopy, 0, source, target, after);
}

int32_t StepList::Reduce(Operand source, Operand target, After after) {
  return Append(Step::Kind::kReduce, 0, source, target, after);
}

Schedule StepList::Finish(int blocks, int scratch_blocks) {
  schedule_.blocks = blocks;
  schedule_.scratch_blocks = scratch_blocks;
  return std::move(schedule_);
}

int32_t StepList::Append(Step::Kind kind, int peer, Operand source, Operand target, After after) {
  Step step;
  step.kind = kind;
  step.peer = Rank(peer);
  step.source = source;
  step.target = target;
  if (kind == Step::Kind::kSend) step.round = round_;
  for (int32_t index : after) {
    if (index != Step::kNone) step.after.push_back(index);
  }
  schedule_.steps.push_back(std::move(step));
  return static_cast<int32_t>(schedule_.steps.size()) - 1;
}

}  // namespace algorithms
}  // namespace lockstep
