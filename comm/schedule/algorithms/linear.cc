// Straight from whoever has a block to whoever wants it: every block moves once, whatever its size, in one round of as
// many messages as there are blocks. Starting with the nearest, so that not all ranks begin with the same one.

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {

Schedule LinearGather(const Place& place) {
  OrderedSteps steps;
  if (place.rank != place.root) {
    steps.Send(Input(place.rank), place.root);
    return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
  }
  for (int distance = 1; distance < place.size; ++distance) {
    steps.Receive(place.Neighbour(distance), Output(place.Neighbour(distance)));
  }
  steps.Copy(Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

Schedule LinearScatter(const Place& place) {
  OrderedSteps steps;
  if (place.rank != place.root) {
    steps.Receive(place.root, Output(place.rank));
    return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
  }
  for (int distance = 1; distance < place.size; ++distance) {
    steps.Send(Input(place.Neighbour(distance)), place.Neighbour(distance));
  }
  steps.Copy(Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

// At any distance, everyone sends to one rank and receives from one.
Schedule PairwiseAllToAll(const Place& place) {
  OrderedSteps steps(OrderedSteps::InPlace::kTwoMemories);
  for (int distance = 1; distance < place.size; ++distance) {
    const int right = place.Neighbour(distance), left = place.Neighbour(-distance);
    steps.Send(Input(right), right);
    steps.Receive(left, Output(left));
  }
  steps.Copy(Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

}  // namespace lockstep::algorithms
