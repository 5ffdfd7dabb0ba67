#include "base/limits.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;

// What a kernel shows, in a folder of the test's.
class LimitsTest : public ::testing::Test {
 protected:
  LimitsTest() : folder_(fs::path(::testing::TempDir()) / absl::StrCat("limits_", getpid())) {
    fs::create_directories(folder_);
    SetLimitFilesForTesting({Path("proc"), Path("groups")});
  }
  ~LimitsTest() override {
    SetLimitFilesForTesting({});
    fs::remove_all(folder_);
  }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }
  std::string Path(const std::string& path) const { return (folder_ / path).string(); }

 private:
  const fs::path folder_;
};

TEST_F(LimitsTest, OfTheMachineIsWhatIsAvailableAndFreeSwap) {
  Write("proc/meminfo",
        "MemTotal:  100 kB\nMemFree: 10 kB\nMemAvailable:   40 kB\nSwapCached: 7 kB\nSwapTotal: 9 kB\nSwapFree: 2 kB");
  EXPECT_EQ(ReadMemoryLeft().machine, 42 * 1024);
  EXPECT_EQ(WhyNoMemory(42 * 1024), "");
  EXPECT_EQ(WhyNoMemory(42 * 1024 + 1),
            absl::StrCat("43008 bytes are left by MemAvailable and SwapFree of ", Path("proc"), "/meminfo"));
}

TEST_F(LimitsTest, OfAGroupOfVersion2IsWhatItsProcessesCanStillTake) {
  Write("proc/self/cgroup", "0::/");
  Write("groups/memory.max", "max");
  EXPECT_EQ(ReadMemoryLeft().group, MemoryLeft::kUnknown);
  Write("groups/memory.max", "10000");
  EXPECT_EQ(ReadMemoryLeft().group, 10000);
  Write("groups/memory.current", "7000");
  EXPECT_EQ(ReadMemoryLeft().group, 3000);
  // The page cache is given back when it must.
  Write("groups/memory.stat",
        "anon 4000\nfile 3000\ninactive_file 1500\nactive_file 500\nshmem 1000\nslab_reclaimable 100");
  EXPECT_EQ(ReadMemoryLeft().group, 5100);
  EXPECT_EQ(ReadMemoryLeft().group_file, Path("groups/memory.max"));
  EXPECT_EQ(WhyNoMemory(5101), absl::StrCat("5100 bytes are left by ", Path("groups/memory.max")));
  Write("proc/meminfo", "MemAvailable: 4 kB\nSwapFree: 1 kB");
  EXPECT_EQ(ReadMemoryLeft().group, 6124) << "with the machine's swap";
  Write("groups/memory.swap.max", "300");
  Write("groups/memory.swap.current", "100");
  EXPECT_EQ(ReadMemoryLeft().group, 5300);
  Write("groups/memory.current", "20000");
  EXPECT_EQ(ReadMemoryLeft().group, 200) << "more in use than allowed";
}

TEST_F(LimitsTest, OfGroupsTheOneThatLeavesLeastCounts) {
  Write("proc/self/cgroup", "0::/pods/one");
  Write("groups/pods/one/memory.max", "5000");
  Write("groups/pods/memory.max", "6000");
  Write("groups/memory.max", "4000");
  EXPECT_EQ(ReadMemoryLeft().group, 4000);
  Write("groups/pods/memory.current", "3000");
  EXPECT_EQ(ReadMemoryLeft().group, 3000);
  const uint64_t pods = ReadMemoryLeft().group_id;
  EXPECT_NE(pods, 0);
  Write("groups/pods/one/memory.max", "2000");
  EXPECT_EQ(ReadMemoryLeft().group, 2000);
  EXPECT_NE(ReadMemoryLeft().group_id, pods);
}

// The group's path is the host's, and the container sees its own group at the top.
TEST_F(LimitsTest, OfAPathThatIsNotMountedIsThatOfTheTop) {
  Write("proc/self/cgroup",
        "7:cpu,cpuacct:/docker/abc\n4:memory,hugetlb:/docker/abc\n1:name=systemd:/docker/abc\n0::/");
  Write("groups/memory/memory.limit_in_bytes", "123456789");
  Write("groups/memory/memory.usage_in_bytes", "123450000");
  Write("groups/memory/memory.stat", "cache 5\ntotal_inactive_file 1000\ntotal_active_file 11");
  EXPECT_EQ(ReadMemoryLeft().group, 7800);
  EXPECT_EQ(ReadMemoryLeft().group_file, Path("groups/memory/memory.limit_in_bytes"));
}

TEST_F(LimitsTest, WhatCannotBeReadLimitsNothing) {
  EXPECT_EQ(WhyNoMemory(MemoryLeft::kUnknown), "");
  Write("proc/self/cgroup", "0\n::\n4:memory:relative\n0::/x\n");
  Write("proc/meminfo", "MemTotal: 5 kB\nSwapFree: 1 kB");
  Write("groups/x/memory.max", "-5");
  EXPECT_EQ(WhyNoMemory(MemoryLeft::kUnknown), "");
  EXPECT_EQ(ReadMemoryLeft().group_id, 0);
}

TEST_F(LimitsTest, ThreadsAreLimitedByUserAndGroup) {
  Write("proc/self/cgroup", "8:pids:/a\n0::/");
  Write("groups/pids/a/pids.max", "100");
  Write("groups/pids/a/pids.current", "99");
  EXPECT_THAT(LimitsOnThreads(), HasSubstr(absl::StrCat(Path("groups/pids/a/pids.max"), " allows 100, 99 are there")));
}

TEST_F(LimitsTest, OutOfMemoryKillsAreThoseOfAllGroups) {
  EXPECT_EQ(OutOfMemoryKills(), 0);
  Write("proc/self/cgroup", "4:memory:/a\n0::/b");
  Write("groups/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2");
  Write("groups/b/memory.events", "low 0\noom 5\noom_kill 3\noom_group_kill 0");
  EXPECT_EQ(OutOfMemoryKills(), 5);
}

TEST_F(LimitsTest, CoresAreThoseOfTheMaskThatTheGroupsTimeIsEnoughFor) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(UsableCores(), CPU_COUNT(&before));

  // Version 2. The folder above has the smaller limit.
  Write("proc/self/cgroup", "0::/pods/one");
  Write("groups/pods/one/cpu.max", "max 100000");
  EXPECT_EQ(UsableCores(), CPU_COUNT(&before));
  Write("groups/pods/cpu.max", "190000 100000");
  EXPECT_EQ(UsableCores(), 1);
  Write("groups/pods/cpu.max", "10000 100000");
  EXPECT_EQ(UsableCores(), 1) << "less than one core";
  Write("groups/pods/cpu.max", "900000000 100000");
  EXPECT_EQ(UsableCores(), CPU_COUNT(&before)) << "more than the machine has";

  // Version 1.
  Write("proc/self/cgroup", "3:cpu,cpuacct:/docker/abc");
  Write("groups/cpu/cpu.cfs_period_us", "100000");
  Write("groups/cpu/cpu.cfs_quota_us", "-1");
  EXPECT_EQ(UsableCores(), CPU_COUNT(&before));
  Write("groups/cpu/cpu.cfs_quota_us", "150000");
  EXPECT_EQ(UsableCores(), 1);

  Write("proc/self/cgroup", "");
  int core = 0;
  while (!CPU_ISSET(core, &before)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(UsableCores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(Limits, AStackThatDoesNotFitIsNoLimitOnThreads) {
  const auto without_memory = [] {
    uint64_t kilobytes = 0;
    std::ifstream status("/proc/self/status");
    for (std::string word; word != "VmData:" && status >> word;) {
    }
    status >> kilobytes;
    if (!Limit(RLIMIT_DATA, (kilobytes << 10) + (1 << 20)).ok()) return 2;
    const std::string limits = LimitsOnThreads();
    if (absl::StrContains(limits, "RLIMIT_NPROC")) return 3;
    return absl::StrContains(limits, "no memory for its stack: RLIMIT_DATA allows ") ? 0 : 4;
  };
  EXPECT_EQ(RunInForkedChild(without_memory, Deadline::AfterMs(20'000)), 0);
}

TEST_F(LimitsTest, MappingsAreNamedWhenTheyAreUsedUp) {
  Write("proc/sys/vm/max_map_count", "12");
  Write("proc/self/maps", "1\n2");
  EXPECT_THAT(LimitsOnMemory(), ::testing::Not(HasSubstr("max_map_count")));
  Write("proc/self/maps", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10");
  EXPECT_THAT(LimitsOnMemory(), HasSubstr("vm.max_map_count allows 12 mappings, 10 are there"));
}

}  // namespace
}  // namespace lockstep
