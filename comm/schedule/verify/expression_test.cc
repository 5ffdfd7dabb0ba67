#include "comm/schedule/verify/expression.h"

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

TEST(ExpressionTable, TellsWhereSumsAreRounded) {
  ExpressionTable table(3);
  const auto a = table.Leaf(Rank(0), 0), b = table.Leaf(Rank(1), 0), c = table.Leaf(Rank(2), 0);
  const auto once = table.Combine(table.Accumulate(a, b), c), twice = table.Combine(table.Combine(a, b), c);
  EXPECT_NE(once, twice);
  EXPECT_NE(table.Canonical(once), table.Canonical(twice));
  EXPECT_EQ(table.Canonical(once), table.Canonical(table.Combine(table.Accumulate(b, a), c)));
  EXPECT_NE(table.Canonical(once), table.Canonical(table.Combine(table.Accumulate(a, c), b)));
  EXPECT_TRUE(table.IsRoundedOnce(once));
  EXPECT_FALSE(table.IsRoundedOnce(twice));
  EXPECT_TRUE(table.IsRoundedOnce(table.Combine(a, b)));
  EXPECT_FALSE(table.IsRoundedOnce(table.Combine(c, table.Combine(a, b))));
  EXPECT_EQ(table.ToString(once), "(r0+r1+r2)");
}

TEST(ExpressionTable, KnowsAFoldInRankOrder) {
  ExpressionTable table(3);
  const auto a = table.Leaf(Rank(0), 4), b = table.Leaf(Rank(1), 4), c = table.Leaf(Rank(2), 4);
  EXPECT_TRUE(table.ReducesInRankOrder(table.Combine(table.Combine(a, b), c)));
  EXPECT_TRUE(table.ReducesInRankOrder(table.Combine(c, table.Combine(b, a))));
  EXPECT_TRUE(table.ReducesInRankOrder(table.Combine(table.Accumulate(a, b), c)));
  EXPECT_FALSE(table.ReducesInRankOrder(table.Combine(table.Combine(a, c), b)));
  EXPECT_FALSE(table.ReducesInRankOrder(table.Combine(a, table.Combine(b, c))));
  EXPECT_FALSE(table.ReducesInRankOrder(table.Combine(a, b)));
  EXPECT_FALSE(table.ReducesInRankOrder(a));
}

// The trees of different blocks are one, but not their ids.
TEST(ExpressionTable, KeepsBlocksApart) {
  ExpressionTable table(2);
  const auto in = [&](int block) { return table.Combine(table.Leaf(Rank(0), block), table.Leaf(Rank(1), block)); };
  EXPECT_NE(in(0), in(1));
  EXPECT_NE(table.Canonical(in(0)), table.Canonical(in(70000)));
  EXPECT_EQ(table.block(in(70000)), 70000);
  EXPECT_EQ(table.LeafRank(table.Leaf(Rank(1), 3)), 1);
  EXPECT_EQ(table.LeafRank(in(3)), -1);
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
