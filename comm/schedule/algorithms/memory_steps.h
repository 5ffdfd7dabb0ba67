// The list of steps of a shared-memory algorithm under construction. Steps run one after the other; `after` is empty.

#ifndef COMM_SCHEDULE_ALGORITHMS_MEMORY_STEPS_H_
#define COMM_SCHEDULE_ALGORITHMS_MEMORY_STEPS_H_

#include <utility>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {

// Of one rank, whose place outlives it.
class MemorySteps {
 public:
  explicit MemorySteps(const Place& place) : place_(place) {}

  // The operand, in the window of some rank.
  Operand Of(int rank, Operand operand) const {
    if (rank != place_.rank) operand.rank = rank;
    return operand;
  }

  void Barrier() { Append(Step::Kind::kBarrier, Nothing(), Nothing()); }
  // Rank r's source arrives in scratch block r.
  void Share(Operand source) { Append(Step::Kind::kShare, source, {Window::kScratch, 0, place_.size}); }
  void Copy(Operand source, Operand target) { Append(Step::Kind::kCopy, source, target); }
  // Reduces one operand of each rank, in rank order, into all targets.
  template <typename TermOf>
  void ReduceMany(TermOf term_of, Operand target, std::vector<Operand> more_targets = {}) {
    Append(Step::Kind::kReduceMany, Nothing(), target);
    Step& step = schedule_.steps.back();
    for (int rank = 0; rank < place_.size; ++rank) step.terms.push_back(term_of(rank));
    step.more_targets = std::move(more_targets);
  }

  // Ends the construction.
  Schedule Finish(int blocks, int scratch_blocks) {
    schedule_.blocks = blocks;
    schedule_.scratch_blocks = scratch_blocks;
    return std::move(schedule_);
  }

 private:
  void Append(Step::Kind kind, Operand source, Operand target) {
    Step& step = schedule_.steps.emplace_back();
    step.kind = kind;
    step.source = source;
    step.target = target;
  }

  const Place& place_;
  Schedule schedule_;
};

}  // namespace lockstep::algorithms

#endif  // COMM_SCHEDULE_ALGORITHMS_MEMORY_STEPS_H_
