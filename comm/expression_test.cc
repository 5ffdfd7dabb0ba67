#include "comm/expression.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(ExpressionTable, GivesEqualExpressionsEqualIds) {
  ExpressionTable table(3);
  const auto a = table.Leaf(Rank(0), 5), b = table.Leaf(Rank(1), 5), c = table.Leaf(Rank(2), 5);
  EXPECT_EQ(table.Leaf(Rank(0), 5), a);
  EXPECT_NE(table.Leaf(Rank(0), 4), a);
  EXPECT_EQ(table.Combine(a, b), table.Combine(a, b));
  EXPECT_NE(table.Combine(a, b), table.Combine(b, a));
  EXPECT_EQ(table.Combine(table.Combine(a, b), c), table.Combine(table.Combine(a, b), c));
  EXPECT_EQ(table.block(table.Combine(a, b)), 5);
}

TEST(ExpressionTable, IsCanonicalUpToTheOrderOfOperandsButNotUpToTheirGrouping) {
  ExpressionTable table(3);
  const auto a = table.Leaf(Rank(0), 0), b = table.Leaf(Rank(1), 0), c = table.Leaf(Rank(2), 0);
  const auto right_first = table.Combine(c, table.Combine(b, a));
  const auto left_first = table.Combine(table.Combine(a, b), c);
  const auto other_grouping = table.Combine(a, table.Combine(b, c));
  EXPECT_NE(left_first, right_first);
  EXPECT_EQ(table.Canonical(left_first), table.Canonical(right_first));
  EXPECT_NE(table.Canonical(left_first), table.Canonical(other_grouping));
  EXPECT_EQ(table.Canonical(a), a);
}

TEST(ExpressionTable, KnowsItsLeavesBeyondOneWord) {
  ExpressionTable table(130);
  const auto low = table.Leaf(Rank(3), 0), high = table.Leaf(Rank(129), 0);
  const auto both = table.Combine(low, high);
  EXPECT_TRUE(table.HasLeaf(both, Rank(3)));
  EXPECT_TRUE(table.HasLeaf(both, Rank(129)));
  EXPECT_FALSE(table.HasLeaf(both, Rank(128)));
  EXPECT_EQ(table.SharedLeaf(low, high), -1);
  EXPECT_EQ(table.SharedLeaf(both, high), 129);
  EXPECT_EQ(table.MissingLeaf(both), 0);
  auto all = table.Leaf(Rank(0), 0);
  for (int rank = 1; rank < 129; ++rank) all = table.Combine(all, table.Leaf(Rank(rank), 0));
  EXPECT_EQ(table.MissingLeaf(all), 129);
  EXPECT_EQ(table.MissingLeaf(table.Combine(high, all)), -1);
}

TEST(ExpressionTable, PrintsOperandsInTheirOrder) {
  ExpressionTable table(3);
  const auto a = table.Leaf(Rank(0), 0), b = table.Leaf(Rank(1), 0), c = table.Leaf(Rank(2), 0);
  EXPECT_EQ(table.ToString(table.Combine(c, table.Combine(b, a))), "(r2+(r1+r0))");
  EXPECT_EQ(table.ToString(ExpressionTable::kUndefined), "undefined");
}

TEST(ExpressionTableDeathTest, ChecksThatOperandsFit) {
  ExpressionTable table(2);
  const auto a = table.Leaf(Rank(0), 0), b = table.Leaf(Rank(1), 1);
  EXPECT_DEATH(table.Combine(a, b), "block 0 with block 1");
  EXPECT_DEATH(table.Combine(a, a), "rank 0 would count twice");
}

}  // namespace
}  // namespace lockstep
