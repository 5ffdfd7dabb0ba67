// What a block of memory holds during a collective, as an expression of the ranks' inputs.
//
// A leaf is one rank's input block; a node is `left op right` of two expressions. Equal expressions have equal ids
// (hash-consing), so comparing two trees costs one comparison however large they are. Reduction operators are
// commutative but, on floating-point numbers, not associative: expressions with equal Canonical() ids have equal bits.

#ifndef COMM_EXPRESSION_H_
#define COMM_EXPRESSION_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/rank.h"

namespace lockstep {

// Ids are valid in the table that made them. Not thread-safe.
class ExpressionTable {
 public:
  using Id = int32_t;
  static constexpr Id kUndefined = -1;

  explicit ExpressionTable(int ranks);

  Id Leaf(Rank rank, int block);
  // Both must be of the same block and share no leaf.
  Id Combine(Id left, Id right);

  // The block all leaves are of.
  int block(Id id) const { return nodes_[id].block; }
  // The same expression with the operands of every node in one order.
  Id Canonical(Id id) const { return nodes_[id].canonical; }
  bool HasLeaf(Id id, Rank rank) const;
  // A rank whose leaf both have, or -1.
  int SharedLeaf(Id a, Id b) const;
  // A rank whose leaf is not in it, or -1.
  int MissingLeaf(Id id) const;

  // "((r2+r1)+r0)"; the block goes without saying.
  std::string ToString(Id id) const;

 private:
  struct Node {
    Id left = kUndefined;  // kUndefined in a leaf
    Id right = kUndefined;
    Id canonical = kUndefined;
    int32_t rank = 0;  // of a leaf
    int32_t block = 0;
  };

  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  const uint64_t* leaves(Id id) const { return &leaves_[static_cast<size_t>(id) * words_]; }
  Id Intern(Id left, Id right);

  const int ranks_;
  const int words_;  // of 64 ranks, in a set of leaves
  std::vector<Node> nodes_;
  std::vector<uint64_t> leaves_;  // one set for each node
  // By Key(left, right), and Key(-1 - rank, block) of leaves.
  std::unordered_map<uint64_t, Id> ids_;
};

}  // namespace lockstep

#endif  // COMM_EXPRESSION_H_
