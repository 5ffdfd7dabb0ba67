// Algorithms by memory: for ranks that map each other's memory.
//
// one_pass: a meeting, after which all buffers are ready; each rank's share of the work, which reads inputs and writes
// outputs where they lie, every byte once; a meeting, after which all shares are done. Nobody reads what was written, so
// two meetings are enough, and some ranks may work in place while others do not. Where a rank copies from several others
// it begins with its next neighbour, so that not all read one rank's memory at a time.
//
// one_line: one meeting, in which everyone's few bytes come along; the rest each rank does for itself. Nobody touches
// another rank's buffers.

#include <utility>
#include <vector>

#include "comm/algorithms/algorithms.h"

namespace lockstep {
namespace algorithms {
namespace {

// The steps of one rank, one after the other.
class MemorySteps {
 public:
  explicit MemorySteps(const Place& place) : place_(place) {}

  // The operand, in the window of some rank.
  Operand Of(int rank, Operand operand) const {
    if (rank != place_.rank) operand.rank = rank;
    return operand;
  }

  void Meet() { Append(Step::Kind::kMeet, Nothing(), Nothing()); }
  // What rank r gives is then in scratch block r.
  void Share(Operand source) { Append(Step::Kind::kShare, source, {Window::kScratch, 0, place_.size}); }
  void Copy(Operand source, Operand target) { Append(Step::Kind::kCopy, source, target); }
  // The fold of everyone's `block`, in rank order, in the target and in more targets.
  void FoldInputs(int block, Operand target, std::vector<Operand> more_targets = {}) {
    std::vector<Operand> terms;
    for (int rank = 0; rank < place_.size; ++rank) terms.push_back(Of(rank, Input(block)));
    Fold(std::move(terms), target, std::move(more_targets));
  }
  // The fold of what everyone has shared.
  void FoldShared(Operand target) {
    std::vector<Operand> terms;
    for (int rank = 0; rank < place_.size; ++rank) terms.push_back(Scratch(rank, 0));
    Fold(std::move(terms), target, {});
  }

  // Ends the construction.
  Schedule Finish(int blocks, int scratch_blocks) {
    schedule_.blocks = blocks;
    schedule_.scratch_blocks = scratch_blocks;
    return std::move(schedule_);
  }
  // As well, with the meeting that ends a pass.
  Schedule FinishPass(int blocks) {
    Meet();
    return Finish(blocks, /*scratch_blocks=*/0);
  }

 private:
  void Append(Step::Kind kind, Operand source, Operand target) {
    Step step;
    step.kind = kind;
    step.source = source;
    step.target = target;
    schedule_.steps.push_back(std::move(step));
  }
  void Fold(std::vector<Operand> terms, Operand target, std::vector<Operand> more_targets) {
    Append(Step::Kind::kReduceMany, Nothing(), target);
    schedule_.steps.back().terms = std::move(terms);
    schedule_.steps.back().more_targets = std::move(more_targets);
  }

  const Place& place_;
  Schedule schedule_;
};

}  // namespace

Schedule OnePassAllReduce(const Place& place) {
  MemorySteps steps(place);
  std::vector<Operand> others;
  for (int distance = 1; distance < place.size; ++distance) {
    others.push_back(steps.Of(place.Neighbour(distance), Output(place.rank)));
  }
  steps.Meet();
  steps.FoldInputs(place.rank, Output(place.rank), std::move(others));
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OnePassReduce(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  steps.FoldInputs(place.rank, steps.Of(place.root, Output(place.rank)));
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OnePassReduceScatter(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  steps.FoldInputs(place.rank, Output(place.rank));
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OnePassBroadcast(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  steps.Copy(steps.Of(place.root, Input(0)), Output(0));
  return steps.FinishPass(/*blocks=*/1);
}

Schedule OnePassAllGather(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  for (int distance = 1; distance <= place.size; ++distance) {
    const int peer = place.Neighbour(distance);
    steps.Copy(steps.Of(peer, Input(peer)), Output(peer));
  }
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OnePassGather(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  steps.Copy(Input(place.rank), steps.Of(place.root, Output(place.rank)));
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OnePassScatter(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  steps.Copy(steps.Of(place.root, Input(place.rank)), Output(place.rank));
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OnePassAllToAll(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  for (int distance = 1; distance <= place.size; ++distance) {
    const int peer = place.Neighbour(distance);
    steps.Copy(steps.Of(peer, Input(place.rank)), Output(peer));
  }
  return steps.FinishPass(/*blocks=*/place.size);
}

Schedule OneLineAllReduce(const Place& place) {
  MemorySteps steps(place);
  steps.Share(Input(0));
  steps.FoldShared(Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size);
}

Schedule OneLineReduce(const Place& place) {
  MemorySteps steps(place);
  steps.Share(Input(0));
  if (place.rank == place.root) steps.FoldShared(Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size);
}

Schedule OneLineBroadcast(const Place& place) {
  MemorySteps steps(place);
  const bool is_root = place.rank == place.root;
  steps.Share(is_root ? Input(0) : Nothing());
  steps.Copy(is_root ? Input(0) : Scratch(place.root, 0), Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size);
}

Schedule OneLineAllGather(const Place& place) {
  MemorySteps steps(place);
  steps.Share(Input(place.rank));
  for (int rank = 0; rank < place.size; ++rank) {
    steps.Copy(rank == place.rank ? Input(rank) : Scratch(rank, rank), Output(rank));
  }
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/place.size);
}

Schedule OneLineBarrier(const Place& place) {
  MemorySteps steps(place);
  steps.Meet();
  return steps.Finish(/*blocks=*/0, /*scratch_blocks=*/0);
}

}  // namespace algorithms
}  // namespace lockstep
