// one_shot, two_shot: every rank sends what others need straight to them, and whoever needs a result folds all
// contributions itself, in rank order and in one step. As few rounds as there can be, for as many messages as there can
// be: for small worlds, and for ranks that share memory. Results do not depend on how the vector is cut.

#include <utility>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {
namespace {

// output[block] = the fold of everyone's `block`. The others' arrive in scratch, nearest sender first.
void ReceiveAndReduce(const Place& place, int block, OrderedSteps* steps) {
  std::vector<Operand> terms(place.size);
  terms[place.rank] = Input(block);
  for (int distance = 1; distance < place.size; ++distance) {
    const int peer = place.Neighbour(-distance);
    terms[peer] = Scratch(distance - 1, block);
    steps->Receive(peer, terms[peer]);
  }
  steps->ReduceMany(std::move(terms), Output(block));
}

// Everyone's own block of the output to everyone.
void ShareBlocks(const Place& place, Operand own, OrderedSteps* steps) {
  for (int distance = 1; distance < place.size; ++distance) {
    steps->Send(own, place.Neighbour(distance));
    steps->Receive(place.Neighbour(-distance), Output(place.Neighbour(-distance)));
  }
}

// Each rank folds its own block. Returns the blocks of scratch. Between two ranks there is nothing to collect: what
// arrives is the only other term.
int FoldOwnBlock(const Place& place, OrderedSteps* steps) {
  for (int distance = 1; distance < place.size; ++distance) {
    steps->Send(Input(place.Neighbour(distance)), place.Neighbour(distance));
  }
  if (place.size == 2) {
    steps->ReceiveReduce(place.Neighbour(1), Input(place.rank), Output(place.rank));
    return 0;
  }
  ReceiveAndReduce(place, place.rank, steps);
  return place.size - 1;
}

}  // namespace

Schedule OneShotAllReduce(const Place& place) {
  OrderedSteps steps;
  for (int distance = 1; distance < place.size; ++distance) steps.Send(Input(0), place.Neighbour(distance));
  ReceiveAndReduce(place, /*block=*/0, &steps);
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size - 1);
}

Schedule OneShotReduce(const Place& place) {
  OrderedSteps steps;
  if (place.rank != place.root) {
    steps.Send(Input(0), place.root);
    return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
  }
  ReceiveAndReduce(place, /*block=*/0, &steps);
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/place.size - 1);
}

Schedule OneShotReduceScatter(const Place& place) {
  OrderedSteps steps;
  const int scratch_blocks = FoldOwnBlock(place, &steps);
  return steps.Finish(/*blocks=*/place.size, scratch_blocks);
}

Schedule OneShotAllGather(const Place& place) {
  OrderedSteps steps;
  ShareBlocks(place, Input(place.rank), &steps);
  steps.Copy(Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

// Reduce-scatter, then all-gather, either in one round.
Schedule TwoShotAllReduce(const Place& place) {
  OrderedSteps steps;
  const int scratch_blocks = FoldOwnBlock(place, &steps);
  steps.NextRound();
  ShareBlocks(place, Output(place.rank), &steps);
  return steps.Finish(/*blocks=*/place.size, scratch_blocks);
}

}  // namespace lockstep::algorithms
