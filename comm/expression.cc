#include "comm/expression.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace lockstep {

ExpressionTable::ExpressionTable(int ranks) : ranks_(ranks), words_((ranks + 63) / 64) {}

ExpressionTable::Id ExpressionTable::Leaf(Rank rank, int block) {
  const Id next = static_cast<Id>(nodes_.size());
  const auto [found, is_new] = ids_.try_emplace(Key(-1 - rank.value(), block), next);
  if (is_new) {
    Node node;
    node.canonical = next;
    node.rank = rank.value();
    node.block = block;
    nodes_.push_back(node);
    leaves_.resize(leaves_.size() + words_);
    leaves_[static_cast<size_t>(next) * words_ + rank.value() / 64] |= uint64_t{1} << (rank.value() % 64);
  }
  return found->second;
}

ExpressionTable::Id ExpressionTable::Combine(Id left, Id right) {
  LOCKSTEP_CHECK(block(left) == block(right)) << "block " << block(left) << " with block " << block(right);
  LOCKSTEP_CHECK(SharedLeaf(left, right) < 0) << "rank " << SharedLeaf(left, right) << " would count twice";
  const Id id = Intern(left, right);
  if (nodes_[id].canonical == kUndefined) {
    const Id a = nodes_[left].canonical, b = nodes_[right].canonical;
    const Id canonical = a == left && b == right && a < b ? id : Intern(std::min(a, b), std::max(a, b));
    nodes_[canonical].canonical = canonical;
    nodes_[id].canonical = canonical;
  }
  return id;
}

ExpressionTable::Id ExpressionTable::Intern(Id left, Id right) {
  const Id next = static_cast<Id>(nodes_.size());
  const auto [found, is_new] = ids_.try_emplace(Key(left, right), next);
  if (is_new) {
    Node node;
    node.left = left;
    node.right = right;
    node.block = nodes_[left].block;
    nodes_.push_back(node);
    for (int word = 0; word < words_; ++word) leaves_.push_back(leaves(left)[word] | leaves(right)[word]);
  }
  return found->second;
}

bool ExpressionTable::HasLeaf(Id id, Rank rank) const {
  return (leaves(id)[rank.value() / 64] >> (rank.value() % 64) & 1) != 0;
}

int ExpressionTable::SharedLeaf(Id a, Id b) const {
  for (int word = 0; word < words_; ++word) {
    const uint64_t shared = leaves(a)[word] & leaves(b)[word];
    if (shared != 0) return word * 64 + __builtin_ctzll(shared);
  }
  return -1;
}

int ExpressionTable::MissingLeaf(Id id) const {
  for (int word = 0; word < words_; ++word) {
    const uint64_t missing = ~leaves(id)[word];
    if (missing == 0) continue;
    const int rank = word * 64 + __builtin_ctzll(missing);
    return rank < ranks_ ? rank : -1;
  }
  return -1;
}

std::string ExpressionTable::ToString(Id id) const {
  if (id == kUndefined) return "undefined";
  const Node& node = nodes_[id];
  if (node.left == kUndefined) return absl::StrCat("r", node.rank);
  return absl::StrCat("(", ToString(node.left), "+", ToString(node.right), ")");
}

}  // namespace lockstep
