// Algorithms in shared memory for buffers that all ranks map, and for a few bytes of any.
//
// direct: a barrier, after which all buffers are ready; each rank's share of the work, which reads inputs and writes
// outputs where they lie, every byte once; a barrier, after which all shares are done. Nobody reads what was written, so
// two barriers are enough, and some ranks may work in place while others do not. Where a rank copies from several others
// it begins with its next neighbour, so that not all read one rank's memory at a time.
//
// inline: one barrier, in which everyone's few bytes come along; the rest each rank does for itself. Nobody touches
// another rank's buffers.

#include <utility>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"
#include "comm/schedule/algorithms/memory_steps.h"

namespace lockstep::algorithms {
namespace {

// The steps of a pass: what ends them is a barrier.
class Pass : public MemorySteps {
 public:
  explicit Pass(const Place& place) : MemorySteps(place) { Barrier(); }

  // The fold of everyone's `block`.
  void FoldInputs(int block, Operand target, std::vector<Operand> more_targets = {}) {
    ReduceMany([&](int rank) { return Of(rank, Input(block)); }, target, std::move(more_targets));
  }
  Schedule EnterAndFinish(int blocks) {
    Barrier();
    return Finish(blocks, /*scratch_blocks=*/0);
  }
};

// What everyone has shared.
Operand Shared(int rank) { return Scratch(rank, 0); }

}  // namespace

Schedule DirectAllReduce(const Place& place) {
  Pass steps(place);
  std::vector<Operand> others;
  for (int distance = 1; distance < place.size; ++distance) {
    others.push_back(steps.Of(place.Neighbour(distance), Output(place.rank)));
  }
  steps.FoldInputs(place.rank, Output(place.rank), std::move(others));
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule DirectReduce(const Place& place) {
  Pass steps(place);
  steps.FoldInputs(place.rank, steps.Of(place.root, Output(place.rank)));
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule DirectReduceScatter(const Place& place) {
  Pass steps(place);
  steps.FoldInputs(place.rank, Output(place.rank));
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule DirectBroadcast(const Place& place) {
  Pass steps(place);
  steps.Copy(steps.Of(place.root, Input(0)), Output(0));
  return steps.EnterAndFinish(/*blocks=*/1);
}

Schedule DirectAllGather(const Place& place) {
  Pass steps(place);
  for (int distance = 1; distance <= place.size; ++distance) {
    const int peer = place.Neighbour(distance);
    steps.Copy(steps.Of(peer, Input(peer)), Output(peer));
  }
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule DirectGather(const Place& place) {
  Pass steps(place);
  steps.Copy(Input(place.rank), steps.Of(place.root, Output(place.rank)));
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule DirectScatter(const Place& place) {
  Pass steps(place);
  steps.Copy(steps.Of(place.root, Input(place.rank)), Output(place.rank));
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule DirectAllToAll(const Place& place) {
  Pass steps(place);
  for (int distance = 1; distance <= place.size; ++distance) {
    const int peer = place.Neighbour(distance);
    steps.Copy(steps.Of(peer, Input(place.rank)), Output(peer));
  }
  return steps.EnterAndFinish(/*blocks=*/place.size);
}

Schedule InlineAllReduce(const Place& place) {
  MemorySteps steps(place);
  steps.Share(Input(0));
  steps.ReduceMany(Shared, Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size);
}

Schedule InlineReduce(const Place& place) {
  MemorySteps steps(place);
  steps.Share(Input(0));
  if (place.rank == place.root) steps.ReduceMany(Shared, Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size);
}

Schedule InlineBroadcast(const Place& place) {
  MemorySteps steps(place);
  const bool is_root = place.rank == place.root;
  steps.Share(is_root ? Input(0) : Nothing());
  steps.Copy(is_root ? Input(0) : Shared(place.root), Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size);
}

Schedule InlineAllGather(const Place& place) {
  MemorySteps steps(place);
  steps.Share(Input(place.rank));
  for (int rank = 0; rank < place.size; ++rank) {
    steps.Copy(rank == place.rank ? Input(rank) : Scratch(rank, rank), Output(rank));
  }
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/place.size);
}

Schedule InlineBarrier(const Place& place) {
  MemorySteps steps(place);
  steps.Barrier();
  return steps.Finish(/*blocks=*/0, /*scratch_blocks=*/0);
}

}  // namespace lockstep::algorithms
