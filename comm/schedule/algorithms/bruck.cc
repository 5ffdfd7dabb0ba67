// Bruck's algorithms: ceil(log2 size) rounds for any size. In round k everyone talks to the ranks 2^k further on and back.
//
// Source: Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems", 1997.

#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"
#include "comm/schedule/algorithms/circulant.h"

namespace lockstep::algorithms {

// Before the round of 2^k, a rank has the blocks of itself and the 2^k - 1 ranks behind it, and passes all that are still
// wanted on. Blocks go straight to their places in the output, so nothing is rotated afterwards; what passes the end of
// the vector is two messages.
Schedule BruckAllGather(const Place& place) {
  Group group;
  group.ranks.resize(place.size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.self = place.rank;
  OrderedSteps steps;
  for (int distance = 1; distance < place.size; distance *= 2) {
    const int wanted = std::min(distance, place.size - distance);
    for (const Piece& piece : Pieces(group, 0, wanted)) {
      const Window window = distance == 1 ? Window::kInput : Window::kOutput;
      steps.Send({window, piece.block, piece.blocks}, place.Neighbour(-distance));
    }
    for (const Piece& piece : Pieces(group, distance, distance + wanted)) {
      steps.Receive(place.Neighbour(distance), {Window::kOutput, piece.block, piece.blocks});
    }
    if (distance == 1) steps.Copy(Input(place.rank), Output(place.rank));
    steps.NextRound();
  }
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

// A block has as many places to go as its receiver is further on than its sender, and goes 2^k of them in round k if bit k
// of that is set. All blocks that go in one round are packed into one message. Nothing is unpacked: what arrived in a
// round stays where it is until it goes on, or into the output.
Schedule BruckAllToAll(const Place& place) {
  OrderedSteps steps(OrderedSteps::InPlace::kTwoMemories);
  int scratch_blocks = 0;
  // Of the block that has `distance` places to go in all: where it is, if still or already here.
  std::vector<Operand> held(place.size);
  for (int distance = 0; distance < place.size; ++distance) held[distance] = Input(place.Neighbour(distance));
  for (int bit = 1; bit < place.size; bit *= 2) {
    std::vector<int> going;
    for (int distance = bit; distance < place.size; ++distance) {
      if ((distance & bit) != 0) going.push_back(distance);
    }
    const int count = static_cast<int>(going.size());
    Operand packed = held[bit];
    if (count > 1) {
      packed = {Window::kScratch, scratch_blocks, count};
      for (int i = 0; i < count; ++i) steps.Copy(held[going[i]], Scratch(scratch_blocks + i, 0));
      scratch_blocks += count;
    }
    steps.Send(packed, place.Neighbour(bit));
    steps.Receive(place.Neighbour(-bit), {Window::kScratch, scratch_blocks, count});
    for (int i = 0; i < count; ++i) held[going[i]] = Scratch(scratch_blocks + i, 0);
    scratch_blocks += count;
    steps.NextRound();
  }
  for (int distance = 0; distance < place.size; ++distance) {
    steps.Copy(held[distance], Output(place.Neighbour(-distance)));
  }
  return steps.Finish(/*blocks=*/place.size, scratch_blocks);
}

}  // namespace lockstep::algorithms
