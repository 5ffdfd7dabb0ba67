#include "comm/plan/execution_plan.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"

namespace lockstep {

ExecutionPlan::ExecutionPlan(Options options)
    : options_(std::move(options)),
      piece_(std::numeric_limits<int64_t>::max()),
      scratch_block_(options_.output.largest()) {
  const Schedule& own = schedule().schedule();
  // A world of one needs no stage.
  if (IsStaged(own.algorithm) && own.scratch_blocks > 0) {
    scratch_block_ = piece_ = StagePieceBytes(own.scratch_blocks) / options_.element_bytes;
    rounds_ = std::max<int64_t>(1, (options_.output.largest() + piece_ - 1) / piece_);
  } else {
    scratch_bytes_ = own.scratch_blocks * scratch_block_ * options_.element_bytes;
  }
  const int count = schedule().steps();
  steps_.resize(count);
  for (int i = 0; i < count; ++i) {
    const Step& step = schedule().step(i);
    StepLayout& layout = steps_[i];
    layout.step = &step;
    layout.elements = Elements(SizingOperand(step));
    layout.chunks = ChunkLayout(layout.elements, options_.element_bytes, options_.chunk_bytes);
    if (ReadsSource(step.kind)) layout.source_offset = Offset(step.source);
    if (WritesTarget(step.kind)) layout.target_offset = Offset(step.target);
    for (const Operand& term : step.terms) layout.term_offsets.push_back(Offset(term));
    for (const Operand& target : step.more_targets) layout.more_target_offsets.push_back(Offset(target));
  }
  LinkSteps();
  exchange_ = FindExchange();
}

absl::optional<ExecutionPlan::Exchange> ExecutionPlan::FindExchange() const {
  const Schedule& own = schedule().schedule();
  const int64_t elements = options_.output.count();
  if (own.collective != Collective::kAllReduce || own.size != 2 || own.blocks != 1 || elements == 0)
    return absl::nullopt;
  // One message each way, and this rank's waits for none: it is the input. What arrives is folded here, so it is one, too.
  int sends = 0, receives = 0, folds = 0;
  for (const StepLayout& layout : steps_) {
    const Step::Kind kind = layout.step->kind;
    if (IsMessage(kind) && layout.chunks.chunks() > 1) return absl::nullopt;
    if (kind == Step::Kind::kSend) ++sends;
    if (kind == Step::Kind::kReceive || kind == Step::Kind::kReceiveReduce) ++receives;
    if (kind == Step::Kind::kReceiveReduce || kind == Step::Kind::kReduceMany) ++folds;
    for (const int32_t earlier : layout.step->after) {
      if (kind == Step::Kind::kSend && schedule().step(earlier).kind != Step::Kind::kCopy) return absl::nullopt;
    }
  }
  if (sends != 1 || receives != 1 || folds != 1) return absl::nullopt;
  return Exchange{Rank(1 - own.rank.value()), static_cast<size_t>(elements * options_.element_bytes)};
}

void ExecutionPlan::LinkSteps() {
  const int count = schedule().steps();
  std::vector<std::vector<Dependent>> dependents(count);
  std::vector<std::vector<int32_t>> chunkwise_after(count);
  for (int i = 0; i < count; ++i) {
    const PreparedSchedule::Links& links = schedule().links(i);
    const Step::After& after = steps_[i].step->after;
    steps_[i].lane_next = links.lane_next;
    steps_[i].held_by = links.lane_previous == PreparedSchedule::kNone ? 0 : 1;
    for (size_t k = 0; k < after.size(); ++k) {
      // A single chunk is the whole of the step.
      const bool chunkwise = links.chunkwise[k] && steps_[i].chunks.chunks() > 1;
      dependents[after[k]].push_back({i, chunkwise});
      if (chunkwise) {
        chunkwise_after[i].push_back(after[k]);
      } else {
        ++steps_[i].held_by;
      }
    }
  }
  for (int i = 0; i < count; ++i) {
    dependents_.insert(dependents_.end(), dependents[i].begin(), dependents[i].end());
    chunkwise_after_.insert(chunkwise_after_.end(), chunkwise_after[i].begin(), chunkwise_after[i].end());
  }
  // Now both stay where they are.
  const Dependent* next_dependent = dependents_.data();
  const int32_t* next_after = chunkwise_after_.data();
  for (int i = 0; i < count; ++i) {
    steps_[i].dependents = absl::MakeConstSpan(next_dependent, dependents[i].size());
    steps_[i].chunkwise_after = absl::MakeConstSpan(next_after, chunkwise_after[i].size());
    next_dependent += dependents[i].size();
    next_after += chunkwise_after[i].size();
  }
}

int64_t ExecutionPlan::Elements(const Operand& operand) const {
  if (operand.window == Window::kInput) return options_.input.Size(operand.block, operand.blocks);
  return options_.output.Size(operand.sized_as(), operand.blocks);
}

size_t ExecutionPlan::Offset(const Operand& operand) const {
  if (operand.window == Window::kScratch) return static_cast<size_t>(operand.block) * scratch_block_bytes();
  const BlockLayout& layout = operand.window == Window::kInput ? options_.input : options_.output;
  const Schedule& own = schedule().schedule();
  const int rank = operand.rank == Operand::kOwn ? own.rank.value() : operand.rank;
  const int64_t begin = IsOwnBlock(own.collective, operand.window) ? layout.Offset(rank) : 0;
  return static_cast<size_t>((layout.Offset(operand.block) - begin) * options_.element_bytes);
}

}  // namespace lockstep
