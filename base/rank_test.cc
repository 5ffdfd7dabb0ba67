#include "base/rank.h"

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(RankTest, ComparesPrintsAndHashesAsItsNumber) {
  EXPECT_EQ(Rank(), Rank(0));
  EXPECT_NE(Rank(1), Rank(2));
  EXPECT_LT(Rank(1), Rank(2));
  EXPECT_FALSE(Rank(2) < Rank(2));
  EXPECT_EQ(Rank(7).value(), 7);
  EXPECT_EQ(testing::PrintToString(Rank(7)), "7");
  EXPECT_EQ(absl::Hash<Rank>()(Rank(7)), absl::Hash<Rank>()(Rank(7)));
  EXPECT_NE(absl::Hash<Rank>()(Rank(7)), absl::Hash<Rank>()(Rank(8)));
}

}  // namespace
}  // namespace lockstep
