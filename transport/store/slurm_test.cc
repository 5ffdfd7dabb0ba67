#include "transport/store/slurm.h"

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(FirstSlurmHost, IsTheFirstOfTheList) {
  for (const auto& [list, host] : std::initializer_list<std::pair<const char*, const char*>>{
           {"n1", "n1"},
           {"localhost", "localhost"},
           {"n1,n2", "n1"},
           {"n[1-3,07-09],x", "n1"},
           {"n[07-09,12],x", "n07"},
           {"n[5]", "n5"},
           {"x,n[1-3]", "x"},
           {"rack[1-2]n[00-15]", "rack1n00"},
           {"gpu-a[2-3].cluster_x.example", "gpu-a2.cluster_x.example"},
           {"n[0000000000000000000000001-2]", "n0000000000000000000000001"}}) {
    EXPECT_THAT(FirstSlurmHost(list), IsOkAndHolds(std::string(host))) << list;
  }
}

TEST(FirstSlurmHost, RefusesAnythingElse) {
  for (const char* const list : {"", ",n1", "n[", "n[]", "n[1-", "n[1-]", "n[-3]", "n[1-2-3]", "n[1,]", "n[a-b]", "n]",
                                 "n 1", "n[1-3", "(null)", "n/1"}) {
    EXPECT_THAT(FirstSlurmHost(list),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(list), HasSubstr("n[1-3,07-09],x"))))
        << list;
  }
}

TEST(SlurmTasksOnNode, FollowsTheGroups) {
  const int expected[] = {2, 2, 2, 1, 16, 16};
  for (int node = 0; node < 6; ++node)
    EXPECT_THAT(SlurmTasksOnNode("2(x3),1,16(x2)", node), IsOkAndHolds(expected[node]));
  EXPECT_THAT(SlurmTasksOnNode("4", 0), IsOkAndHolds(4));
  for (const int node : {-1, 6}) {
    EXPECT_THAT(SlurmTasksOnNode("2(x3),1,16(x2)", node),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("has no node ", node))));
  }
}

TEST(SlurmTasksOnNode, RefusesAnythingElse) {
  for (const char* const tasks :
       {"", ",", "x", "0", "-1", "2(x0)", "2(x3", "2(3)", "2(x)", "(x3)", "2,", "2(x3),y", "99999999999"}) {
    EXPECT_THAT(SlurmTasksOnNode(tasks, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2(x3),1")))
        << tasks;
  }
}

TEST(SlurmPort, IsInItsRangeAndDiffersBetweenNeighbours) {
  EXPECT_EQ(SlurmPort(0, 0), 20000);
  EXPECT_EQ(SlurmPort(100, 2), 23102);
  std::set<int> ports;
  for (int64_t job = 4194300; job < 4194308; ++job) {
    for (int64_t step = 0; step < 31; ++step) ports.insert(SlurmPort(job, step));
  }
  EXPECT_EQ(ports.size(), 8 * 31);
  EXPECT_GE(*ports.begin(), kSlurmPortFirst);
  EXPECT_LT(*ports.rbegin(), kSlurmPortFirst + kSlurmPortCount);
  EXPECT_GE(SlurmPort(-1, -1), kSlurmPortFirst);
  EXPECT_LT(SlurmPort(INT64_MAX, INT64_MAX), kSlurmPortFirst + kSlurmPortCount);
}

}  // namespace
}  // namespace lockstep
