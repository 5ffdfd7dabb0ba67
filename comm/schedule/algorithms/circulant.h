// Halving and doubling on the circulant graph. A group of ranks reduce-scatters and all-gathers a range of blocks, one block
// for each member, for any number of members, with both the fewest rounds and the fewest bytes.
//
// Each member numbers members and blocks from its own on, round the group. While halving, a member collects its first s
// blocks: s is all, then ceil(s/2), and 1 at the end. In a round it sends its sums of blocks [h, s), h = ceil(s/2), to the
// member h places on, whose first s-h blocks they are, and adds what arrives to its own first s-h. Doubling is the same
// backwards. That takes ceil(log2 n) rounds, and n-1 of n blocks in each direction. If n is a power of two, rounds and bytes
// are those of Rabenseifner's algorithm. For other n, that algorithm first adds some members to others, and so sends the whole
// vector twice more; this one does not.
//
// Source: J. L. Traeff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms", 2024; the graph is that of
// Bruck et al., "Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems", 1997.

#ifndef COMM_SCHEDULE_ALGORITHMS_CIRCULANT_H_
#define COMM_SCHEDULE_ALGORITHMS_CIRCULANT_H_

#include <vector>

#include "comm/schedule/algorithms/algorithms.h"
#include "comm/schedule/schedule.h"

namespace lockstep::algorithms {

struct Group {
  std::vector<int> ranks;  // of the members, in order
  int self = 0;            // this rank's number among them
  int first_block = 0;     // member i's block is first_block + i

  int size() const { return static_cast<int>(ranks.size()); }
  // The member `distance` places further round the group; |distance| <= size.
  int Neighbour(int distance) const { return ranks[(self + distance + size()) % size()]; }
};

// Blocks that are contiguous in the vector, `offset` places from the member's own on.
struct Piece {
  int offset = 0;
  int block = 0;
  int blocks = 1;
};
// The member's blocks [begin, end), cut where they pass the end of the group's range: at most two pieces, none if the range is
// empty. A message is one piece, so sender and receiver cut at the same places.
std::vector<Piece> Pieces(const Group& group, int begin, int end);

// One round of halving. Doubling takes the rounds in reverse order.
struct Halving {
  int from = 0;  // s
  int to = 0;    // h
};
// Of a group of `size`: empty for one member.
std::vector<Halving> Halvings(int size);

// Both functions begin a new round of `steps` for each of their rounds.
//
// Leaves the group's sum of the member's own block in the output. Sums are made in the output, so all of the
// group's blocks must exist there. `terms`: the window that has this member's terms.
void HalveInOutput(const Group& group, Window terms, OrderedSteps* steps);

// Gathers every member's own block of the output: then each has all of the group's blocks.
void DoubleInOutput(const Group& group, OrderedSteps* steps);

}  // namespace lockstep::algorithms

#endif  // COMM_SCHEDULE_ALGORITHMS_CIRCULANT_H_
