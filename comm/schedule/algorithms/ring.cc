// Rings: rank r sends to r+1 and receives from r-1, one block at a time, so every link carries something all the time.
//
// What arrives in one round is sent on in the next, under the same operand: the executor overlaps the two chunk by
// chunk, and the first chunk runs round the ring while the last is still on its way.

#include <algorithm>
#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {

// Reduce-scatter, then all-gather. Block b starts at rank b and has met everyone at rank b-1, which passes it on.
// Nothing is copied beforehand: the first send comes from the input, and each sum is input op arriving -> output.
Schedule RingAllReduce(const Place& place) {
  const int left = place.Neighbour(-1), right = place.Neighbour(1);
  OrderedSteps steps;

  steps.Send(Input(place.rank), right);
  for (int round = 1; round < place.size; ++round) {
    const int block = place.Neighbour(-round);
    steps.ReceiveReduce(left, Input(block), Output(block));
    // In the last round, this begins the all-gather with the finished block.
    steps.NextRound();
    steps.Send(Output(block), right);
  }
  for (int round = 0; round + 1 < place.size; ++round) {
    const int block = place.Neighbour(-round);
    steps.Receive(left, Output(block));
    // The right neighbour finished the block that arrives last.
    steps.NextRound();
    if (round + 2 < place.size) steps.Send(Output(block), right);
  }
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

Schedule RingAllGather(const Place& place) {
  const int left = place.Neighbour(-1), right = place.Neighbour(1);
  OrderedSteps steps;

  steps.Send(Input(place.rank), right);
  for (int round = 1; round < place.size; ++round) {
    const int block = place.Neighbour(-round);
    steps.Receive(left, Output(block));
    // Behind the first messages, so that the copy keeps no link waiting.
    if (round == 1) steps.Copy(Input(place.rank), Output(place.rank));
    steps.NextRound();
    if (round + 1 < place.size) steps.Send(Output(block), right);
  }
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

// Block b starts at rank b+1, so that its last sum is made at rank b, in the output. The sums on the way alternate
// between two scratch blocks: one is sent while the next is made.
Schedule RingReduceScatter(const Place& place) {
  const int left = place.Neighbour(-1), right = place.Neighbour(1);
  OrderedSteps steps;

  steps.Send(Input(left), right);
  for (int round = 0; round + 2 < place.size; ++round) {
    const int slot = round % 2, block = place.Neighbour(-2 - round);
    steps.ReceiveReduce(left, Input(block), Scratch(slot, block));
    steps.NextRound();
    steps.Send(Scratch(slot, block), right);
  }
  steps.ReceiveReduce(left, Input(place.rank), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/std::min(2, place.size - 2));
}

// The ring cut open behind the root: a chain that begins at root+1 and ends at the root, each adding its own. Every
// link carries the vector once, and the chunks of one block follow each other down the chain. It folds in ring order,
// one rank at a time.
Schedule RingReduce(const Place& place) {
  const int left = place.Neighbour(-1), right = place.Neighbour(1);
  const bool is_root = place.rank == place.root, is_first = left == place.root;
  OrderedSteps steps;
  steps.InRound(place.relative());
  if (is_first) {
    steps.Send(Input(0), right);
    return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
  }
  const Operand sum = is_root ? Output(0) : Scratch(0, 0);
  steps.ReceiveReduce(left, Input(0), sum);
  if (!is_root) steps.Send(sum, right);
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/is_root ? 0 : 1);
}

}  // namespace lockstep::algorithms
