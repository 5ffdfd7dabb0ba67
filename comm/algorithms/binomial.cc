// Binomial trees, in the numbering that begins at the root: the parent of x is x without its lowest bit, so the
// children of x are x + 2^k for every 2^k below that bit (any, for the root) that stays inside the world.

#include <vector>

#include "comm/algorithms/algorithms.h"

namespace lockstep {
namespace algorithms {
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

}  // namespace

Schedule BinomialBroadcast(const Place& place) {
  StepList steps;
  const bool is_root = place.rank == place.root;
  const Operand value = is_root ? Input(0) : Output(0);
  const int32_t received = is_root ? Step::kNone : steps.Receive(Parent(place), value);
  // The largest subtree has the longest way to go: it is served first.
  const std::vector<int> children = Children(place);
  for (auto child = children.rbegin(); child != children.rend(); ++child) steps.Send(value, *child, {received});
  if (is_root) steps.Copy(Input(0), Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

// A rank adds up its children, the smallest subtree first: it is ready first, and the sum then runs in rank order from
// the root on.
Schedule BinomialReduce(const Place& place) {
  StepList steps;
  const bool is_root = place.rank == place.root;
  const std::vector<int> children = Children(place);
  Operand sum = Input(0);
  int32_t summed = Step::kNone;
  for (int child : children) {
    const Operand next = is_root ? Output(0) : Scratch(0);
    summed = steps.ReceiveReduce(child, sum, next, {summed});
    sum = next;
  }
  if (!is_root) steps.Send(sum, Parent(place), {summed});
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/is_root || children.empty() ? 0 : 1);
}

}  // namespace algorithms
}  // namespace lockstep
