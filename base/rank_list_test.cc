#include "base/rank_list.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(RankList, CompressesRanges) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({0, 1}), "ranks 0-1");
  EXPECT_EQ(RankList({2, 5, 6, 7}), "ranks 2, 5-7");
  EXPECT_EQ(RankList({0, 2, 4}), "ranks 0, 2, 4");
}

}  // namespace
}  // namespace lockstep
