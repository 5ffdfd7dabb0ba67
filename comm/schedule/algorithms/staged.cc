// Algorithms in shared memory for buffers that their ranks alone map: through a stage, of which every rank has a part before all.
//
// staged: everyone copies to its part what others need of its input; a barrier; everyone takes what it needs from the
// parts of the others. Every byte is written once more than in direct, and there is one barrier.
//
// staged_two_shot: as two_shot with messages. Everyone stages what others own; a barrier; each rank folds the block that
// it owns, and leaves the result on the stage; a barrier; everyone takes the results of the others. Of n ranks' inputs
// each then reads one n-th and writes one n-th, where staged has it read all.
//
// Whoever takes from several others begins with its next neighbour, so that not all read one part at a time. Collectives
// with a root have no staged algorithm: their messages let a rank that only sends go ahead of the others, which a barrier
// does not.

#include <utility>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"
#include "comm/schedule/algorithms/memory_steps.h"

namespace lockstep::algorithms {
namespace {

class StagedSteps : public MemorySteps {
 public:
  explicit StagedSteps(const Place& place) : MemorySteps(place), place_(place) {}

  // Stages block j of the input for its owner, rank j, as block j.
  void StageForOwners() {
    for (int distance = 1; distance < place_.size; ++distance) {
      const int owner = place_.Neighbour(distance);
      Copy(Input(owner), Scratch(owner, owner));
    }
  }
  // The fold of everyone's version of a block: what others have staged, as the block of scratch of the same number, and this
  // rank's input.
  void ReduceStaged(int block, Operand target, std::vector<Operand> more_targets = {}) {
    const auto term_of = [&](int rank) { return rank == place_.rank ? Input(block) : Of(rank, Scratch(block, block)); };
    ReduceMany(term_of, target, std::move(more_targets));
  }

  // Two shots. The result of a block is left where its owner's next neighbour has staged its version of it.
  Operand ResultOf(int block) const { return Of((block + 1) % place_.size, Scratch(block, block)); }
  void TakeResults() {
    for (int distance = 1; distance < place_.size; ++distance) {
      const int owner = place_.Neighbour(distance);
      Copy(ResultOf(owner), Output(owner));
    }
  }

 private:
  const Place& place_;
};

}  // namespace

Schedule StagedAllReduce(const Place& place) {
  StagedSteps steps(place);
  steps.Copy(Input(0), Scratch(0, 0));
  steps.Barrier();
  steps.ReduceStaged(0, Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/1);
}

Schedule StagedReduceScatter(const Place& place) {
  StagedSteps steps(place);
  steps.StageForOwners();
  steps.Barrier();
  steps.ReduceStaged(place.rank, Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/place.size);
}

Schedule StagedAllGather(const Place& place) {
  StagedSteps steps(place);
  steps.Copy(Input(place.rank), Scratch(0, place.rank));
  steps.Barrier();
  for (int distance = 1; distance < place.size; ++distance) {
    const int peer = place.Neighbour(distance);
    steps.Copy(steps.Of(peer, Scratch(0, peer)), Output(peer));
  }
  steps.Copy(Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/1);
}

Schedule StagedAllToAll(const Place& place) {
  StagedSteps steps(place);
  steps.StageForOwners();
  steps.Barrier();
  for (int distance = 1; distance < place.size; ++distance) {
    const int peer = place.Neighbour(distance);
    steps.Copy(steps.Of(peer, Scratch(place.rank, place.rank)), Output(peer));
  }
  steps.Copy(Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/place.size);
}

Schedule StagedTwoShotAllReduce(const Place& place) {
  StagedSteps steps(place);
  steps.StageForOwners();
  steps.Barrier();
  steps.ReduceStaged(place.rank, Output(place.rank), {steps.ResultOf(place.rank)});
  steps.Barrier();
  steps.TakeResults();
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/place.size);
}

}  // namespace lockstep::algorithms
