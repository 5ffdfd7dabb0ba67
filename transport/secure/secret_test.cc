#include "transport/secure/secret.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const char kHex[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eFF";

std::string FileOf(const std::string& text, mode_t mode) {
  const std::string path = ::testing::TempDir() + "/secret";
  (void)unlink(path.c_str());
  std::ofstream(path) << text;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

TEST(SecretTest, NewOnesDiffer) {
  const auto a = Secret::Draw();
  const auto b = Secret::Draw();
  LOCKSTEP_ASSERT_OK(a);
  LOCKSTEP_ASSERT_OK(b);
  EXPECT_EQ((*a)->bytes().size(), Secret::kBytes);
  EXPECT_NE((*a)->bytes(), (*b)->bytes());
}

TEST(SecretTest, ReadsHexInAFileOfTheUsersOwn) {
  for (const std::string& end : {std::string(), std::string("\n"), std::string(" \r\n"), std::string(64, '\n')}) {
    const auto secret = Secret::ReadFile(FileOf(kHex + end, 0600));
    LOCKSTEP_ASSERT_OK(secret);
    EXPECT_EQ((*secret)->bytes().front(), 0);
    EXPECT_EQ((*secret)->bytes().back(), '\xff');
    EXPECT_EQ((*secret)->Hex(), "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff");
  }
}

TEST(SecretTest, AnyOtherContentsIsRefusedWithoutBeingShown) {
  const std::string hex = kHex;
  for (const std::string& text :
       {std::string(), hex.substr(1), hex + "0", "x" + hex.substr(1), " " + hex, std::string(1000, 'a'),
        hex + std::string(64, ' ') + "more", hex + std::string(65, ' ')}) {
    const auto secret = Secret::ReadFile(FileOf(text, 0600));
    EXPECT_THAT(secret.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr("/secret"), HasSubstr("0600"), Not(HasSubstr("0102030405")))))
        << text;
  }
}

TEST(SecretTest, AFileThatOthersMayReadIsRefused) {
  for (const mode_t mode : {0644, 0660, 0604, 0602, 0601, 0620, 0777}) {
    EXPECT_THAT(Secret::ReadFile(FileOf(kHex, mode)).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr("/secret"), HasSubstr("chmod 600"))))
        << std::oct << mode;
  }
  LOCKSTEP_EXPECT_OK(Secret::ReadFile(FileOf(kHex, 0400)).status());
}

TEST(SecretTest, AGroupOfThisProcessMayReadWhatIsRoots) {
  const std::string path = FileOf(kHex, 0440);
  EXPECT_EQ(Secret::ReadFile(path).ok(), geteuid() == 0);
  if (chown(path.c_str(), 0, 12345) != 0) GTEST_SKIP() << "this process cannot give files away";
  EXPECT_THAT(Secret::ReadFile(path).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr("/secret"), HasSubstr("group 12345"))));
  ASSERT_EQ(chmod(path.c_str(), 0400), 0);
  LOCKSTEP_EXPECT_OK(Secret::ReadFile(path).status()) << "the group may not read it";
}

// Owner and process are both shown as the overflow id there, and need not be the same.
TEST(SecretTest, InANamespaceWithoutAMapNoFileIsThisUsers) {
  const std::string path = FileOf(kHex, 0600);
  const int result = RunInForkedChild(
      [&] {
        if (unshare(CLONE_NEWUSER) != 0) return 99;
        const absl::Status status = Secret::ReadFile(path).status();
        return absl::IsPermissionDenied(status) && absl::StrContains(status.message(), "anybody outside") ? 0 : 1;
      },
      Deadline::AfterMs(20'000));
  if (result == 99) GTEST_SKIP() << "this process can make no user namespace";
  EXPECT_EQ(result, 0);
}

TEST(SecretTest, AFileOfALauncherThatIsNotThereSaysWhatToDo) {
  EXPECT_THAT(Secret::ReadFile("/proc/999999999/fd/3").status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("process 999999999, the launcher"), HasSubstr("set LOCKSTEP_SECRET_FILE"))));
  EXPECT_THAT(Secret::ReadFile("/proc/self/fd/999999").status(),
              StatusIs(absl::StatusCode::kNotFound, Not(HasSubstr("launcher"))));
  const UniqueFd file(open(FileOf(kHex, 0600).c_str(), O_RDONLY | O_CLOEXEC));
  LOCKSTEP_EXPECT_OK(Secret::ReadFile(absl::StrCat("/proc/", getpid(), "/fd/", file.get())).status());
}

TEST(SecretTest, AFileOfAnotherUsersIsRefused) {
  const std::string path = FileOf(kHex, 0600);
  if (chown(path.c_str(), 12345, 12345) != 0) GTEST_SKIP() << "this process cannot give files away";
  EXPECT_THAT(Secret::ReadFile(path).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr("owner 12345"), HasSubstr("belongs to"))));
}

TEST(SecretTest, WhatIsNoFileIsRefused) {
  EXPECT_THAT(Secret::ReadFile(::testing::TempDir()).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("no regular")));
  EXPECT_THAT(Secret::ReadFile("/dev/zero").status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("no regular")));
  const std::string pipe = ::testing::TempDir() + "/pipe";
  (void)unlink(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(Secret::ReadFile(pipe).status(), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("no regular")));
  EXPECT_THAT(Secret::ReadFile("/nowhere").status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
}

TEST(SecretTest, AForkedChildHasNone) {
  const auto secret = Secret::FromHex(kHex);
  LOCKSTEP_ASSERT_OK(secret);
  EXPECT_TRUE((*secret)->usable());
  const pid_t child = fork();
  if (child == 0) _exit(!(*secret)->usable() && (*secret)->bytes()[1] == 0 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SecretTest, TextsAreWiped) {
  std::string text = kHex;
  absl::StatusOr<std::string> result = text;
  absl::StatusOr<std::string> error = absl::UnknownError("none");
  {
    const WipedAtEnd wiped(&text), wiped_too(&result), nothing(&error);
    EXPECT_EQ(text, kHex);
  }
  EXPECT_EQ(text, std::string(sizeof(kHex) - 1, '\0'));
  EXPECT_EQ(*result, text);
}

TEST(SecretTest, BytesAndHexHaveTheirLength) {
  EXPECT_THAT(Secret::FromBytes("short").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32 bytes, not 5")));
  EXPECT_THAT(Secret::FromHex("abc").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64 hex digits, not as 3")));
}

}  // namespace
}  // namespace lockstep
