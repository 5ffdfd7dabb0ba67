// Recursive doubling: in round k, ranks whose numbers differ in bit k exchange all they have. Few rounds, whole
// vectors: for small messages.
//
// Both sides of an exchange combine the same two operands, so all ranks build one tree up to the order of a node's two
// operands, and end with the same bits.

#include <algorithm>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep::algorithms {
namespace {

// The exchanges take place in a core of 2^rounds ranks. Of the first 2 * extra ranks, each even one hands its
// input to its odd neighbour and gets the result from it; the others make up the core.
struct Core {
  explicit Core(int size) {
    while (2 << rounds <= size) ++rounds;
    extra = size - (1 << rounds);
  }
  int ToCore(int rank) const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  int FromCore(int number) const { return number < extra ? 2 * number + 1 : number + extra; }

  int rounds = 0;
  int extra = 0;
};

}  // namespace

Schedule RecursiveDoublingAllReduce(const Place& place) {
  const Core core(place.size);
  const bool is_paired = place.rank < 2 * core.extra;
  OrderedSteps steps;
  if (is_paired && place.rank % 2 == 0) {
    steps.Send(Input(0), place.rank + 1);
    steps.Receive(place.rank + 1, Output(0));
    return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
  }

  // One exchange and nothing folded in before it (2 ranks, or the last of 3). The result cannot be made where its
  // operand is being sent from, and in place there is no third buffer: receive aside, and add when the send is done.
  if (core.rounds == 1 && !is_paired) {
    const int peer = core.FromCore(core.ToCore(place.rank) ^ 1);
    steps.InRound(1);
    steps.Copy(Input(0), Output(0));
    steps.Send(Output(0), peer);
    steps.Receive(peer, Scratch(0, 0));
    steps.ReduceMany({Output(0), Scratch(0, 0)}, Output(0));
    return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/1);
  }

  // Sums move between two scratch blocks, each made in the one that nothing is being sent from; the last is made in the
  // output. No round copies anything.
  Operand sum = Input(0);
  int slots_used = 0;
  if (is_paired) {
    sum = Scratch(0, 0);
    slots_used = 1;
    steps.ReceiveReduce(place.rank - 1, Input(0), sum);
  }
  for (int round = 0; round < core.rounds; ++round) {
    const int peer = core.FromCore(core.ToCore(place.rank) ^ (1 << round));
    const bool is_last = round + 1 == core.rounds;
    const Operand next = is_last ? Output(0) : sum == Scratch(0, 0) ? Scratch(1, 0) : Scratch(0, 0);
    if (!is_last) slots_used = std::max(slots_used, next.block + 1);
    steps.NextRound();  // after that of the extra ranks
    steps.Send(sum, peer);
    steps.ReceiveReduce(peer, sum, next);
    sum = next;
  }
  steps.NextRound();
  if (is_paired) steps.Send(sum, place.rank - 1);
  return steps.Finish(/*blocks=*/1, slots_used);
}

}  // namespace lockstep::algorithms
