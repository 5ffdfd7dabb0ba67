// Halving and doubling on the circulant graph (comm/algorithms/circulant.h), as the members of a group go through it.

#ifndef COMM_PRICES_CIRCULANT_H_
#define COMM_PRICES_CIRCULANT_H_

#include <functional>
#include <utility>
#include <vector>

#include "comm/prices/followed.h"

namespace lockstep {
namespace prices {

class Circulant {
 public:
  struct Member {
    Ends ends;
    // By distance from the member's own block.
    Blocks blocks;
    // Whether what the first round does not touch has to be copied.
    bool copies = false;
  };
  // A message between two members, the first of which is followed, in one of the group's rounds.
  using Messenger = std::function<Message(int source, int target, int round, double bytes, Reduces reduces)>;

  // Member i of `size` does what followed member i % followed does. `members` are those followed, with what has become
  // of them so far.
  Circulant(const Call& call, int size, double block_bytes, Messenger messenger, std::vector<Member>* members)
      : call_(call), size_(size), block_bytes_(block_bytes), messenger_(std::move(messenger)), members_(*members) {}

  // Each member sends blocks [begin, end) to the member `distance` further round, for which they are the blocks from
  // `arriving` on.
  void Round(int distance, int begin, int end, int arriving, Reduces reduces);

  // From the terms that each member's blocks are, the sum of the first; and back, from the first to all.
  void Halve();
  void Double();

  // Blocks [begin, end) of a member, cut where they pass the end of the group's range.
  struct Piece {
    int begin, end;
  };
  std::vector<Piece> Pieces(int member, int begin, int end) const;

 private:
  void CopyUntouched(int begin, int end);

  const Call& call_;
  const int size_;
  const double block_bytes_;
  const Messenger messenger_;
  std::vector<Member>& members_;
  int round_ = 0;
};

}  // namespace prices
}  // namespace lockstep

#endif  // COMM_PRICES_CIRCULANT_H_
