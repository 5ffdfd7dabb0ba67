#include "comm/schedule/verify/expression.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace lockstep {

ExpressionTable::ExpressionTable(int ranks) : ranks_(ranks), words_((ranks + 63) / 64), leaf_of_rank_(ranks, kNone) {}

ExpressionTable::Id ExpressionTable::Leaf(Rank rank, int block) {
  TreeId& leaf = leaf_of_rank_[rank.value()];
  if (leaf == kNone) {
    leaf = static_cast<TreeId>(nodes_.size());
    Node node;
    node.canonical = leaf;
    node.rank = rank.value();
    node.in_rank_order = rank == Rank(0) ? 1 : 0;
    nodes_.push_back(node);
    leaves_.resize(leaves_.size() + words_);
    leaves_[static_cast<size_t>(leaf) * words_ + rank.value() / 64] |= uint64_t{1} << (rank.value() % 64);
  }
  return Make(leaf, block);
}

ExpressionTable::Id ExpressionTable::Combine(Id left, Id right) { return Combine(left, right, End::kRounded); }

ExpressionTable::Id ExpressionTable::Accumulate(Id left, Id right) { return Combine(left, right, End::kOpen); }

ExpressionTable::Id ExpressionTable::Combine(Id left, Id right, End end) {
  LOCKSTEP_CHECK(block(left) == block(right)) << "block " << block(left) << " with block " << block(right);
  LOCKSTEP_CHECK(SharedLeaf(left, right) < 0) << "rank " << SharedLeaf(left, right) << " would count twice";
  const TreeId tree = Intern(Tree(left), Tree(right), end);
  if (nodes_[tree].canonical == kNone) {
    const TreeId a = nodes_[Tree(left)].canonical, b = nodes_[Tree(right)].canonical;
    const bool is_canonical = a == Tree(left) && b == Tree(right) && a < b;
    const TreeId canonical = is_canonical ? tree : Intern(std::min(a, b), std::max(a, b), end);
    nodes_[canonical].canonical = canonical;
    nodes_[tree].canonical = canonical;
  }
  return Make(tree, block(left));
}

ExpressionTable::TreeId ExpressionTable::Intern(TreeId left, TreeId right, End end) {
  const TreeId next = static_cast<TreeId>(nodes_.size());
  const auto [found, is_new] = ids_.try_emplace(Key(left, right, end), next);
  if (is_new) {
    Node node;
    node.left = left;
    node.right = right;
    node.end = end;
    node.in_rank_order = std::max(InRankOrder(left, right), InRankOrder(right, left));
    node.is_rounded_once =
        IsLeaf(right) && (IsLeaf(left) || (nodes_[left].end == End::kOpen && nodes_[left].is_rounded_once));
    nodes_.push_back(node);
    for (int word = 0; word < words_; ++word) leaves_.push_back(leaves(left)[word] | leaves(right)[word]);
  }
  return found->second;
}

int ExpressionTable::InRankOrder(TreeId left, TreeId right) const {
  const int terms = nodes_[left].in_rank_order;
  return terms > 0 && IsLeaf(right) && nodes_[right].rank == terms ? terms + 1 : 0;
}

bool ExpressionTable::HasLeaf(Id id, Rank rank) const {
  return (leaves(Tree(id))[rank.value() / 64] >> (rank.value() % 64) & 1) != 0;
}

int ExpressionTable::SharedLeaf(Id a, Id b) const {
  for (int word = 0; word < words_; ++word) {
    const uint64_t shared = leaves(Tree(a))[word] & leaves(Tree(b))[word];
    if (shared != 0) return word * 64 + __builtin_ctzll(shared);
  }
  return -1;
}

int ExpressionTable::MissingLeaf(Id id) const {
  for (int word = 0; word < words_; ++word) {
    const uint64_t missing = ~leaves(Tree(id))[word];
    if (missing == 0) continue;
    const int rank = word * 64 + __builtin_ctzll(missing);
    return rank < ranks_ ? rank : -1;
  }
  return -1;
}

std::string ExpressionTable::ToString(Id id) const { return id == kUndefined ? "undefined" : TreeToString(Tree(id)); }

std::string ExpressionTable::TreeToString(TreeId tree) const {
  const Node& node = nodes_[tree];
  if (IsLeaf(tree)) return absl::StrCat("r", node.rank);
  const std::string text = absl::StrCat(TreeToString(node.left), "+", TreeToString(node.right));
  return node.end == End::kOpen ? text : absl::StrCat("(", text, ")");
}

}  // namespace lockstep
