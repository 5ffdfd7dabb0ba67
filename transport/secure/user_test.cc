#include "transport/secure/user.h"

#include <sched.h>
#include <unistd.h>

#include <vector>

#include "base/deadline.h"
#include "base/fork_testing.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

const char kAllMapped[] = "         0          0 4294967295\n";
const char kRootless[] = "         0       1000          1\n         1     100000      65536\n";

TEST(UserTest, TheOverflowIdStandsForAnybodyWhereNotAllIdsAreMapped) {
  EXPECT_FALSE(StandsForAnybody(65534, kAllMapped, "65534\n"));
  EXPECT_TRUE(StandsForAnybody(65534, kRootless, "65534\n")) << "though the map has that id";
  EXPECT_TRUE(StandsForAnybody(65534, "0 0 65536\n", "65534\n"));
  EXPECT_TRUE(StandsForAnybody(65534, "1 1 4294967294\n", "65534\n"));
  EXPECT_TRUE(StandsForAnybody(65534, "", "65534\n")) << "a namespace without a map";
  for (const id_t id : {0, 1, 1000, 65533, 65535}) {
    EXPECT_FALSE(StandsForAnybody(id, kRootless, "65534\n"));
    EXPECT_FALSE(StandsForAnybody(id, "", "65534\n"));
  }
}

TEST(UserTest, TheOverflowIdMayBeAnother) {
  EXPECT_TRUE(StandsForAnybody(99, kRootless, "99\n"));
  EXPECT_TRUE(StandsForAnybody(0, kRootless, "0\n"));
  EXPECT_FALSE(StandsForAnybody(99, kAllMapped, "99\n"));
  EXPECT_FALSE(StandsForAnybody(65534, kRootless, "99\n"));
}

TEST(UserTest, WithoutTheFilesTheUsualOverflowIdStandsForAnybody) {
  EXPECT_TRUE(StandsForAnybody(65534, "", ""));
  EXPECT_TRUE(StandsForAnybody(65534, kRootless, "nonsense"));
  EXPECT_FALSE(StandsForAnybody(0, "", ""));
  EXPECT_FALSE(StandsForAnybody(1000, "", ""));
}

TEST(UserTest, KnowsItselfAndOthers) {
  EXPECT_EQ(IsThisUser(geteuid()), DescribeUser(geteuid()).find("anybody") == std::string::npos);
  EXPECT_FALSE(IsThisUser(geteuid() + 1));
  EXPECT_TRUE(IsRoot(0));
  EXPECT_FALSE(IsRoot(1000));
  EXPECT_EQ(DescribeUser(1000), "user 1000");
  EXPECT_TRUE(IsGroupOfThisProcess(getegid()));
  std::vector<gid_t> groups(getgroups(0, nullptr));
  ASSERT_EQ(getgroups(static_cast<int>(groups.size()), groups.data()), groups.size());
  for (const gid_t group : groups) EXPECT_TRUE(IsGroupOfThisProcess(group));
  EXPECT_FALSE(IsGroupOfThisProcess(123456));
}

// Both are shown as the overflow id there.
TEST(UserTest, InANamespaceWithoutAMapNobodyIsThisUserOrRoot) {
  const int result = RunInForkedChild(
      [] {
        if (unshare(CLONE_NEWUSER) != 0) return 99;
        if (IsThisUser(geteuid()) || IsRoot(geteuid()) || IsGroupOfThisProcess(getegid())) return 1;
        return DescribeUser(geteuid()).find("anybody outside") == std::string::npos ? 2 : 0;
      },
      Deadline::AfterMs(20'000));
  if (result == 99) GTEST_SKIP() << "this process can make no user namespace";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace lockstep
