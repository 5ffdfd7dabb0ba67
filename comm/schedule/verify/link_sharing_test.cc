#include "comm/select/link_sharing.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(LinkSharing, ServesSendersOfOneRoundEqually) {
  LinkSharing sharing;
  for (int rank : {4, 5, 7}) sharing.Add(/*host=*/1, /*round=*/0, rank, 100);
  for (int rank : {4, 5, 7}) EXPECT_DOUBLE_EQ(sharing.Sharers(1, 0, rank), 3);
}

TEST(LinkSharing, OtherRoundsAndHostsDoNotMeet) {
  LinkSharing sharing;
  sharing.Add(0, 0, 3, 100);
  sharing.Add(0, 1, 2, 100);
  sharing.Add(1, 0, 4, 100);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 3), 1);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 1, 2), 1);
  EXPECT_DOUBLE_EQ(sharing.Sharers(1, 0, 4), 1);
}

// All four have the same share until the three short ones are done; then the long one has the link to itself.
TEST(LinkSharing, AShortMessageIsDoneBeforeALongOne) {
  LinkSharing sharing;
  for (int rank : {0, 1, 2}) sharing.Add(0, 0, rank, 100);
  sharing.Add(0, 0, 3, 300);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 0) * 100, 4 * 100);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 3) * 300, 3 * 100 + 300);
}

TEST(LinkSharing, TheMessagesOfARankInARoundCountTogether) {
  LinkSharing sharing;
  sharing.Add(0, 0, 0, 100);
  sharing.Add(0, 0, 1, 100);
  sharing.Add(0, 0, 1, 100);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 1) * 200, 100 + 200);
}

TEST(LinkSharing, NothingSharesWithMessagesOfNothing) {
  LinkSharing sharing;
  sharing.Add(0, 0, 0, 0);
  sharing.Add(0, 0, 1, 100);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 0), 1);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 1), 1);
}

}  // namespace
}  // namespace lockstep
