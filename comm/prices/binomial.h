// Binomial trees with rank 0 as root, as comm/algorithms/binomial.cc has them.

#ifndef COMM_PRICES_BINOMIAL_H_
#define COMM_PRICES_BINOMIAL_H_

#include <algorithm>

#include "comm/streams.h"

namespace lockstep {
namespace prices {

// How many ranks the subtree of `rank` has: they are consecutive from it on.
inline int BinomialSubtree(int rank, int size) { return rank == 0 ? size : std::min(rank & -rank, size - rank); }

// Calls visit(child) for the children of `rank`, the smallest subtree first.
template <typename Visit>
void ForChildren(int rank, int size, Visit visit) {
  const int held = BinomialSubtree(rank, size);
  for (int distance = 1; distance < held; distance *= 2) visit(rank + distance);
}

// The largest first.
template <typename Visit>
void ForChildrenBackwards(int rank, int size, Visit visit) {
  const int held = BinomialSubtree(rank, size);
  if (held == 1) return;
  for (int distance = 1 << FloorLog2(held - 1); distance > 0; distance /= 2) visit(rank + distance);
}

}  // namespace prices
}  // namespace lockstep

#endif  // COMM_PRICES_BINOMIAL_H_
