#include "base/build_commit.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// tools/workspace_status_test.sh has what it is made of.
TEST(BuildCommit, IsACommitOrUnknown) {
  EXPECT_THAT(BuildCommit(), ::testing::MatchesRegex("unknown|[0-9a-f]{12}(-modified)?"));
}

}  // namespace
}  // namespace lockstep
