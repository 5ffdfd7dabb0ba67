// Halving and doubling among all ranks: see circulant.h.

#include <numeric>

#include "comm/schedule/algorithms/algorithms.h"
#include "comm/schedule/algorithms/circulant.h"

namespace lockstep::algorithms {
namespace {

Group Everyone(const Place& place) {
  Group group;
  group.ranks.resize(place.size);
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  group.self = place.rank;
  return group;
}

}  // namespace

Schedule HalvingDoublingAllReduce(const Place& place) {
  const Group group = Everyone(place);
  OrderedSteps steps;
  HalveInOutput(group, Window::kInput, &steps);
  DoubleInOutput(group, &steps);
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

// As HalveInOutput, but of the output there is one block: the sums on the way are made in scratch, the member's first
// block in scratch block 0.
Schedule HalvingDoublingReduceScatter(const Place& place) {
  const Group group = Everyone(place);
  OrderedSteps steps;
  int scratch_blocks = 0;
  for (const Halving& round : Halvings(place.size)) {
    steps.NextRound();
    const bool is_first = round.from == place.size, is_last = round.to == 1;
    const auto in_scratch = [](const Piece& piece) {
      return Operand{Window::kScratch, piece.offset, piece.blocks, piece.block};
    };
    const auto in_terms = [&](const Piece& piece) {
      return is_first ? Operand{Window::kInput, piece.block, piece.blocks} : in_scratch(piece);
    };
    for (const Piece& piece : Pieces(group, round.to, round.from)) {
      steps.Send(in_terms(piece), group.Neighbour(round.to));
    }
    const int received = round.from - round.to;
    for (const Piece& piece : Pieces(group, 0, received)) {
      steps.ReceiveReduce(group.Neighbour(-round.to), in_terms(piece),
                          is_last ? Output(place.rank) : in_scratch(piece));
    }
    if (is_last) break;
    if (!is_first) continue;
    scratch_blocks = round.to;
    for (const Piece& piece : Pieces(group, received, round.to)) steps.Copy(in_terms(piece), in_scratch(piece));
  }
  return steps.Finish(/*blocks=*/place.size, scratch_blocks);
}

}  // namespace lockstep::algorithms
