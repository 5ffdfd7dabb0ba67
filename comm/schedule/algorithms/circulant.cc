#include "comm/schedule/algorithms/circulant.h"

#include <algorithm>

namespace lockstep::algorithms {

std::vector<Piece> Pieces(const Group& group, int begin, int end) {
  std::vector<Piece> pieces;
  while (begin < end) {
    const int number = (group.self + begin) % group.size();
    const int blocks = std::min(end - begin, group.size() - number);
    pieces.push_back({begin, group.first_block + number, blocks});
    begin += blocks;
  }
  return pieces;
}

std::vector<Halving> Halvings(int size) {
  std::vector<Halving> rounds;
  for (int from = size; from > 1;) {
    const int to = (from + 1) / 2;
    rounds.push_back({from, to});
    from = to;
  }
  return rounds;
}

void HalveInOutput(const Group& group, Window terms, OrderedSteps* steps) {
  for (const Halving& round : Halvings(group.size())) {
    steps->NextRound();
    const bool is_first = round.from == group.size();
    const Window window = is_first ? terms : Window::kOutput;
    for (const Piece& piece : Pieces(group, round.to, round.from)) {
      steps->Send({window, piece.block, piece.blocks}, group.Neighbour(round.to));
    }
    const int received = round.from - round.to;
    for (const Piece& piece : Pieces(group, 0, received)) {
      steps->ReceiveReduce(group.Neighbour(-round.to), {window, piece.block, piece.blocks},
                           {Window::kOutput, piece.block, piece.blocks});
    }
    // Of an odd number, one block is neither sent nor added to: from now on it is looked for in the output.
    if (!is_first || terms == Window::kOutput) continue;
    for (const Piece& piece : Pieces(group, received, round.to)) {
      steps->Copy({terms, piece.block, piece.blocks}, {Window::kOutput, piece.block, piece.blocks});
    }
  }
}

void DoubleInOutput(const Group& group, OrderedSteps* steps) {
  std::vector<Halving> rounds = Halvings(group.size());
  std::reverse(rounds.begin(), rounds.end());
  for (const Halving& round : rounds) {
    steps->NextRound();
    for (const Piece& piece : Pieces(group, 0, round.from - round.to)) {
      steps->Send({Window::kOutput, piece.block, piece.blocks}, group.Neighbour(-round.to));
    }
    for (const Piece& piece : Pieces(group, round.to, round.from)) {
      steps->Receive(group.Neighbour(round.to), {Window::kOutput, piece.block, piece.blocks});
    }
  }
}

}  // namespace lockstep::algorithms
