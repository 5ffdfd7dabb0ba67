// Broadcast by scattering the vector and gathering it again (van de Geijn): a binomial tree hands every rank a block, then
// all blocks go round a ring. No rank sends the vector more than twice, however many there are. For long vectors. Ranks
// and blocks are numbered from the root on.

#include <algorithm>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {
namespace {

// In the tree, rank x answers for blocks [x, x + Held(x)): its own and those of its subtree. The root has them all.
int Held(int relative, int size) { return relative == 0 ? size : std::min(relative & -relative, size - relative); }

bool Holds(int relative, int block, int size) { return block >= relative && block < relative + Held(relative, size); }

}  // namespace

Schedule ScatterAllGatherBroadcast(const Place& place) {
  const int self = place.relative(), held = Held(self, place.size);
  const bool is_root = self == 0;
  const Window window = is_root ? Window::kInput : Window::kOutput;
  OrderedSteps steps;

  if (!is_root) steps.Receive(place.absolute(self & (self - 1)), {window, self, held});
  // The root's subtrees are of every power of two below the size, others' of every one below their own.
  int distance = 1;
  while (distance < held) distance *= 2;
  const int tree_rounds = DoublingRounds(place.size);
  steps.InRound(tree_rounds - DoublingRounds(held));
  for (distance /= 2; distance > 0; distance /= 2, steps.NextRound()) {
    const int child = self + distance;
    if (child >= place.size) continue;
    steps.Send({window, child, Held(child, place.size)}, place.absolute(child));
  }

  const int left = (self + place.size - 1) % place.size, right = (self + 1) % place.size;
  for (int round = 0; round + 1 < place.size; ++round) {
    // What a rank has from the tree, its left neighbour need not send.
    steps.InRound(tree_rounds + round);
    const int passed = (self - round + place.size) % place.size;
    if (!Holds(right, passed, place.size)) steps.Send({window, passed, 1}, place.absolute(right));
    const int arriving = (left - round + place.size) % place.size;
    if (!Holds(self, arriving, place.size)) steps.Receive(place.absolute(left), {window, arriving, 1});
  }
  if (is_root) steps.Copy({Window::kInput, 0, place.size}, {Window::kOutput, 0, place.size});
  return steps.Finish(/*blocks=*/place.size, /*scratch_blocks=*/0);
}

}  // namespace lockstep::algorithms
