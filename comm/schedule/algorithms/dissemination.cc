// Dissemination: in round k, every rank tells the one 2^k further that the 2^k ranks up to itself have arrived.

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {

Schedule DisseminationBarrier(const Place& place) {
  OrderedSteps steps;
  int32_t heard = Step::kNone;  // the receive of the round before
  for (int distance = 1; distance < place.size; distance *= 2, heard += 2) {
    steps.Send(Nothing(), place.Neighbour(distance));
    if (heard != Step::kNone) steps.AlsoAfter(heard);
    steps.Receive(place.Neighbour(-distance), Nothing());
    if (heard != Step::kNone) steps.AlsoAfter(heard);
    steps.NextRound();
  }
  return steps.Finish(/*blocks=*/0, /*scratch_blocks=*/0);
}

}  // namespace lockstep::algorithms
