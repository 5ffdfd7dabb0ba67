// Binomial trees, in the numbering that begins at the root: the parent of x is x without its lowest bit, so the
// children of x are x + 2^k for every 2^k below that bit (any, for the root) that stays inside the world.

#include <algorithm>
#include <vector>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {
namespace {

// In order of growing distance, which is also that of growing subtrees.
std::vector<int> Children(const Place& place) {
  const int relative = place.relative();
  std::vector<int> children;
  for (int distance = 1; (relative & distance) == 0 && relative + distance < place.size; distance *= 2) {
    children.push_back(place.absolute(relative + distance));
  }
  return children;
}

int Parent(const Place& place) {
  const int relative = place.relative();
  return place.absolute(relative & (relative - 1));
}

// The rounds of a tree, one for each distance between child and parent: growing on the way to the root, shrinking on the
// way from it. Of the message to this rank's parent, and of the one to number `child` in Children().
int RoundToRoot(const Place& place) {
  int round = 0;
  while ((place.relative() & 1 << round) == 0) ++round;
  return round;
}
int RoundFromRoot(const Place& place, int child) { return DoublingRounds(place.size) - 1 - child; }

// The ranks of a subtree are consecutive from its own root on: how many.
int SubtreeSize(const Place& place, int rank) {
  const int relative = (rank - place.root + place.size) % place.size;
  const int room = place.size - relative;
  return relative == 0 ? place.size : std::min(relative & -relative, room);
}

// Of a gather or a scatter: the blocks of a subtree, as its root holds them or sends them. They pass the end of the vector
// where the numbering that begins at the tree's root does: there they are two pieces, and two messages.
struct Branch {
  int offset = 0;  // from the first block of the rank that holds them
  int block = 0;
  int blocks = 1;
};
std::vector<Branch> BranchesOf(const Place& place, int rank) {
  const int offset = (rank - place.rank + place.size) % place.size;
  const int blocks = SubtreeSize(place, rank);
  const int before_end = std::min(blocks, place.size - rank);
  std::vector<Branch> branches = {{offset, rank, before_end}};
  if (before_end < blocks) branches.push_back({offset + before_end, 0, blocks - before_end});
  return branches;
}

// Where this rank holds a branch: the root in the vector itself, others in scratch.
Operand Held(const Place& place, const Branch& branch, Window vector) {
  if (place.rank == place.root) return {vector, branch.block, branch.blocks};
  return {Window::kScratch, branch.offset, branch.blocks, branch.block};
}
int ScratchOf(const Place& place, bool is_leaf) {
  return place.rank == place.root || is_leaf ? 0 : SubtreeSize(place, place.rank);
}
}  // namespace

Schedule BinomialBroadcast(const Place& place) {
  OrderedSteps steps;
  const bool is_root = place.rank == place.root;
  const Operand value = is_root ? Input(0) : Output(0);
  if (!is_root) steps.Receive(Parent(place), value);
  // The largest subtree has the longest way to go: it is served first.
  const std::vector<int> children = Children(place);
  for (int child = static_cast<int>(children.size()) - 1; child >= 0; --child) {
    steps.InRound(RoundFromRoot(place, child));
    steps.Send(value, children[child]);
  }
  if (is_root) steps.Copy(Input(0), Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

// A rank adds up its children, the smallest subtree first: it is ready first, and the sum then runs in rank order from
// the root on.
Schedule BinomialReduce(const Place& place) {
  OrderedSteps steps;
  const bool is_root = place.rank == place.root;
  const std::vector<int> children = Children(place);
  Operand sum = Input(0);
  for (int child : children) {
    const Operand next = is_root ? Output(0) : Scratch(0, 0);
    steps.ReceiveReduce(child, sum, next);
    sum = next;
  }
  if (!is_root) {
    steps.InRound(RoundToRoot(place));
    steps.Send(sum, Parent(place));
  }
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/is_root || children.empty() ? 0 : 1);
}

// Blocks that pass through a rank are collected in its scratch, in the order in which they are sent on.
Schedule BinomialGather(const Place& place) {
  OrderedSteps steps;
  const std::vector<int> children = Children(place);
  const bool is_leaf = children.empty();
  const auto held = [&](const Branch& branch) { return Held(place, branch, Window::kOutput); };
  if (!is_leaf) steps.Copy(Input(place.rank), held({0, place.rank, 1}));
  for (int child : children) {
    for (const Branch& branch : BranchesOf(place, child)) steps.Receive(child, held(branch));
  }
  if (place.rank != place.root) {
    steps.InRound(RoundToRoot(place));
    for (const Branch& branch : BranchesOf(place, place.rank)) {
      steps.Send(is_leaf ? Input(place.rank) : held(branch), Parent(place));
    }
  }
  return steps.Finish(/*blocks=*/place.size, ScratchOf(place, is_leaf));
}

Schedule BinomialScatter(const Place& place) {
  OrderedSteps steps;
  const std::vector<int> children = Children(place);
  const bool is_leaf = children.empty();
  const auto held = [&](const Branch& branch) { return Held(place, branch, Window::kInput); };
  if (place.rank != place.root) {
    for (const Branch& branch : BranchesOf(place, place.rank)) {
      steps.Receive(Parent(place), is_leaf ? Output(place.rank) : held(branch));
    }
  }
  // The largest subtree has the longest way to go: it is served first.
  for (int child = static_cast<int>(children.size()) - 1; child >= 0; --child) {
    steps.InRound(RoundFromRoot(place, child));
    for (const Branch& branch : BranchesOf(place, children[child])) steps.Send(held(branch), children[child]);
  }
  if (!is_leaf) steps.Copy(held({0, place.rank, 1}), Output(place.rank));
  return steps.Finish(/*blocks=*/place.size, ScratchOf(place, is_leaf));
}

}  // namespace lockstep::algorithms
