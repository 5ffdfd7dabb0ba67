// Chains along the ranks. Every link carries the vector once in each direction, and its chunks follow each other down the
// chain: for long vectors. A sum that starts at rank 0 and passes every rank is reduced in rank order.

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {
namespace {

// The sum of the ranks up to this one, made in `sum`; rank 0's is its input. Passed on, except by the last.
void FoldAndPassOn(const Place& place, Operand sum, OrderedSteps* steps) {
  steps->InRound(place.rank);
  if (place.rank > 0) steps->ReceiveReduce(place.rank - 1, Input(0), sum);
  if (place.rank + 1 < place.size) steps->Send(place.rank > 0 ? sum : Input(0), place.rank + 1);
}

}  // namespace

// There and back.
Schedule ChainAllReduce(const Place& place) {
  OrderedSteps steps;
  FoldAndPassOn(place, Output(0), &steps);
  if (place.rank + 1 < place.size) steps.Receive(place.rank + 1, Output(0));
  steps.InRound(2 * (place.size - 1) - place.rank);
  if (place.rank > 0) steps.Send(Output(0), place.rank - 1);
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

// The last rank has the result, and sends it to the root.
Schedule ChainReduce(const Place& place) {
  const bool is_root = place.rank == place.root;
  const int last = place.size - 1;
  OrderedSteps steps;
  const Operand sum = is_root ? Output(0) : Scratch(0, 0);
  FoldAndPassOn(place, sum, &steps);
  if (place.root != last && place.rank == last) steps.Send(sum, place.root);
  if (place.root != last && is_root) steps.Receive(last, Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/is_root || place.rank == 0 ? 0 : 1);
}

// From the root round to its left neighbour.
Schedule ChainBroadcast(const Place& place) {
  const bool is_root = place.rank == place.root;
  OrderedSteps steps;
  const Operand value = is_root ? Input(0) : Output(0);
  steps.InRound(place.relative());
  if (!is_root) steps.Receive(place.Neighbour(-1), value);
  if (place.relative() + 1 < place.size) steps.Send(value, place.Neighbour(1));
  if (is_root) steps.Copy(Input(0), Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

}  // namespace lockstep::algorithms
