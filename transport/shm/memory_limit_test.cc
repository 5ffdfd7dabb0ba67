#include "transport/shm/memory_limit.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// What a kernel shows, in a folder of the test's.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() : folder_(fs::path(::testing::TempDir()) / absl::StrCat("memory_limit_", getpid())) {
    fs::create_directories(folder_);
  }
  ~MemoryLimitTest() override { fs::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }
  absl::optional<MemoryLimit> Limit() const { return ContainerMemoryLimit(Path("self"), Path("mount")); }
  std::string Path(const std::string& path) const { return (folder_ / path).string(); }

 private:
  const fs::path folder_;
};

TEST_F(MemoryLimitTest, OfVersion2IsItsMemoryMax) {
  Write("self", "0::/");
  EXPECT_FALSE(Limit().has_value());
  Write("mount/memory.max", "max");
  EXPECT_FALSE(Limit().has_value());
  Write("mount/memory.max", "1073741824");
  ASSERT_TRUE(Limit().has_value());
  EXPECT_EQ(Limit()->bytes, 1073741824);
  EXPECT_EQ(Limit()->file, Path("mount/memory.max"));
}

TEST_F(MemoryLimitTest, IsTheLowestUpToTheTop) {
  Write("self", "0::/pods/one");
  Write("mount/pods/one/memory.max", "5000");
  Write("mount/pods/memory.max", "3000");
  Write("mount/memory.max", "4000");
  ASSERT_TRUE(Limit().has_value());
  EXPECT_EQ(Limit()->bytes, 3000);
  Write("mount/pods/one/memory.max", "2000");
  EXPECT_EQ(Limit()->bytes, 2000);
}

// The group's path is the host's, and the container sees its own group at the top.
TEST_F(MemoryLimitTest, OfAPathThatIsNotMountedIsThatOfTheTop) {
  Write("self", "7:cpu,cpuacct:/docker/abc\n4:memory,hugetlb:/docker/abc\n1:name=systemd:/docker/abc\n0::/");
  Write("mount/memory/memory.limit_in_bytes", "123456789");
  ASSERT_TRUE(Limit().has_value());
  EXPECT_EQ(Limit()->bytes, 123456789);
  EXPECT_EQ(Limit()->file, Path("mount/memory/memory.limit_in_bytes"));
}

TEST_F(MemoryLimitTest, WhatCannotBeReadIsNone) {
  EXPECT_FALSE(Limit().has_value());
  Write("self", "0\n::\n4:memory:relative\n0::/x\n");
  Write("mount/x/memory.max", "-5");
  EXPECT_FALSE(Limit().has_value());
}

}  // namespace
}  // namespace lockstep
