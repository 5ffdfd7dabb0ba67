// The contents of a block of memory during a collective, as an expression of the ranks' inputs.
//
// A leaf is one rank's input block. A node is `left op right` of two expressions: rounded, or open for a further term, as in a
// reduction of many that is rounded once. Equal expressions have equal ids (hash-consing), so comparing two trees of any size
// costs one comparison. The trees of different blocks share their nodes. Reduction operators are commutative but, on
// floating-point numbers, not associative: expressions with equal Canonical() ids have equal bits.

#ifndef COMM_SCHEDULE_VERIFY_EXPRESSION_H_
#define COMM_SCHEDULE_VERIFY_EXPRESSION_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/rank.h"

namespace lockstep {

// Ids are valid in the table that made them. Not thread-safe.
class ExpressionTable {
 public:
  using Id = int64_t;
  static constexpr Id kUndefined = -1;

  explicit ExpressionTable(int ranks);

  Id Leaf(Rank rank, int block);
  // Both must be of the same block and share no leaf.
  Id Combine(Id left, Id right);
  // The same, not rounded: Combine or Accumulate then adds a term. A reduction of many accumulates all terms except the last.
  Id Accumulate(Id left, Id right);

  // The block of all its leaves.
  static int block(Id id) { return static_cast<int>(id >> 32); }
  // The same expression with the operands of every node in a fixed order.
  Id Canonical(Id id) const { return Make(nodes_[Tree(id)].canonical, block(id)); }
  // The rank of a leaf; -1 for a node.
  int LeafRank(Id id) const { return IsLeaf(Tree(id)) ? nodes_[Tree(id)].rank : -1; }
  bool HasLeaf(Id id, Rank rank) const;
  // A rank whose leaf both have, or -1.
  int SharedLeaf(Id a, Id b) const;
  // A rank whose leaf is not in it, or -1.
  int MissingLeaf(Id id) const;
  // Whether it is (((r0 op r1) op r2) op ...) of all ranks. The order of a node's two operands and the rounding do not matter.
  bool ReducesInRankOrder(Id id) const { return nodes_[Tree(id)].in_rank_order == ranks_; }
  // Whether it is one node whose terms are leaves, or a leaf.
  bool IsRoundedOnce(Id id) const { return nodes_[Tree(id)].is_rounded_once; }

  // "((r2+r1)+r0)", or "(r0+r1+r2)" if it is rounded once. Without the block.
  std::string ToString(Id id) const;

 private:
  // A tree without its block.
  using TreeId = int32_t;
  static constexpr TreeId kNone = -1;
  // A node's value is rounded to the dtype, or stays open for one more term.
  enum class End : uint8_t { kRounded, kOpen };

  struct Node {
    TreeId left = kNone;  // kNone in a leaf
    TreeId right = kNone;
    TreeId canonical = kNone;
    int32_t rank = 0;           // of a leaf
    int32_t in_rank_order = 0;  // n where it is (((r0 op r1) op ...) op r(n - 1)), and otherwise 0
    End end = End::kRounded;
    bool is_rounded_once = true;
  };

  static Id Make(TreeId tree, int block) { return static_cast<Id>(block) << 32 | tree; }
  static TreeId Tree(Id id) { return static_cast<TreeId>(id & 0x7fffffff); }
  // Tree ids are not negative: the highest bit of the right one's half is free.
  static uint64_t Key(TreeId left, TreeId right, End end) {
    const uint64_t open = end == End::kOpen ? uint64_t{1} << 31 : 0;
    return uint64_t{static_cast<uint32_t>(left)} << 32 | open | static_cast<uint32_t>(right);
  }
  bool IsLeaf(TreeId tree) const { return nodes_[tree].left == kNone; }
  const uint64_t* leaves(TreeId tree) const { return &leaves_[static_cast<size_t>(tree) * words_]; }
  Id Combine(Id left, Id right, End end);
  // nodes_[].in_rank_order of a node of two trees.
  int InRankOrder(TreeId left, TreeId right) const;
  TreeId Intern(TreeId left, TreeId right, End end);
  std::string TreeToString(TreeId tree) const;

  const int ranks_;
  const int words_;  // of 64 ranks, in a set of leaves
  std::vector<TreeId> leaf_of_rank_;
  std::vector<Node> nodes_;
  std::vector<uint64_t> leaves_;  // one set for each node
  std::unordered_map<uint64_t, TreeId> ids_;
};

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_EXPRESSION_H_
