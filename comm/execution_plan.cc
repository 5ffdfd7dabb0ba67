#include "comm/execution_plan.h"

#include <utility>

namespace lockstep {

ExecutionPlan::ExecutionPlan(Options options)
    : options_(std::move(options)),
      scratch_block_(options_.output.largest()),
      scratch_bytes_(schedule().schedule().scratch_blocks * scratch_block_ * options_.element_bytes) {
  const int count = schedule().steps();
  steps_.resize(count);
  for (int i = 0; i < count; ++i) {
    const Step& step = schedule().step(i);
    StepLayout& layout = steps_[i];
    layout.elements = Elements(SizingOperand(step));
    layout.chunks = ChunkLayout(layout.elements, options_.element_bytes, options_.chunk_bytes);
    if (UsesSource(step)) layout.source_offset = Offset(step.source);
    if (UsesTarget(step)) layout.target_offset = Offset(step.target);
    for (const Operand& term : step.terms) layout.term_offsets.push_back(Offset(term));
  }
}

int64_t ExecutionPlan::Elements(const Operand& operand) const {
  if (operand.window == Window::kInput) return options_.input.Size(operand.block, operand.blocks);
  return options_.output.Size(operand.sized_as(), operand.blocks);
}

size_t ExecutionPlan::Offset(const Operand& operand) const {
  int64_t elements = 0;
  switch (operand.window) {
    case Window::kInput:
      elements = options_.input.Offset(operand.block) - options_.input_begin;
      break;
    case Window::kOutput:
      elements = options_.output.Offset(operand.block) - options_.output_begin;
      break;
    case Window::kScratch:
      elements = operand.block * scratch_block_;
      break;
  }
  return static_cast<size_t>(elements * options_.element_bytes);
}

}  // namespace lockstep
