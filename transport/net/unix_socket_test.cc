#include "transport/net/unix_socket.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <random>
#include <string>

#include "absl/status/status.h"
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

using Code = absl::StatusCode;
using testing::HasSubstr;

// Names are the whole host's, and another container's process may have the same number.
std::string FreshName() {
  static int count = 0;
  static const uint32_t random = std::random_device()();
  return absl::StrCat("lockstep-test-", getpid(), "-", random, "-", ++count);
}

class UnixSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(listener_, ListenUnix(name_));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(source_, ConnectUnix(name_));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(target_, AcceptUnix(listener_.get()));
    ASSERT_TRUE(source_.valid());
    ASSERT_TRUE(target_.valid());
  }

  const std::string name_ = FreshName();
  UniqueFd listener_, source_, target_;
};

TEST_F(UnixSocketTest, TellsWhoIsAtTheOtherEnd) {
  for (const UniqueFd* end : {&source_, &target_}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UnixCredentials credentials, PeerCredentials(end->get()));
    EXPECT_EQ(credentials.pid, getpid());
    EXPECT_EQ(credentials.uid, geteuid());
  }
}

TEST_F(UnixSocketTest, ANameBelongsToOneListenerAndGoesWithIt) {
  EXPECT_THAT(ListenUnix(name_), StatusIs(Code::kAlreadyExists, HasSubstr("@" + name_)));
  EXPECT_THAT(AcceptUnix(listener_.get())->valid(), false) << "nobody else has connected";
  listener_.reset();
  EXPECT_THAT(ConnectUnix(name_), StatusIs(Code::kUnavailable, HasSubstr("Connection refused")));
  EXPECT_THAT(ListenUnix(name_), IsOk());
}

TEST_F(UnixSocketTest, KeepsMessagesApartAndCarriesDescriptors) {
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  UniqueFd read_end(pipes[0]), write_end(pipes[1]);
  EXPECT_THAT(SendUnix(source_.get(), "plain", {}), IsOkAndHolds(true));
  EXPECT_THAT(SendUnix(source_.get(), "with two", {read_end.get(), write_end.get()}), IsOkAndHolds(true));
  UnixMessage message;
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(true));
  EXPECT_EQ(message.bytes, "plain");
  EXPECT_TRUE(message.descriptors.empty());
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(true));
  EXPECT_EQ(message.bytes, "with two");
  ASSERT_EQ(message.descriptors.size(), 2);
  EXPECT_EQ(fcntl(message.descriptors[0].get(), F_GETFD), FD_CLOEXEC);
  ASSERT_EQ(write(message.descriptors[1].get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 1);
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(false));
}

// An empty message reads as the end of the stream; what came with it must not stay open.
TEST_F(UnixSocketTest, DescriptorsOfAnEmptyMessageAreClosed) {
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  const UniqueFd read_end(pipes[0]);
  UniqueFd write_end(pipes[1]);
  EXPECT_THAT(SendUnix(source_.get(), "", {write_end.get(), write_end.get()}), IsOkAndHolds(true));
  write_end.reset();
  UnixMessage message;
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), StatusIs(Code::kUnavailable, "connection closed by peer"));
  EXPECT_TRUE(message.descriptors.empty());
  ASSERT_EQ(fcntl(read_end.get(), F_SETFL, O_NONBLOCK), 0);
  char byte = 0;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0) << "somebody can still write";
}

TEST_F(UnixSocketTest, AFullSocketTakesNoMoreAndLosesNothing) {
  int sent = 0;
  for (;; ++sent) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const bool took, SendUnix(source_.get(), absl::StrCat("message ", sent), {}));
    if (!took) break;
    ASSERT_LT(sent, 1'000'000);
  }
  UnixMessage message;
  for (int i = 0; i < sent; ++i) {
    ASSERT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(true));
    ASSERT_EQ(message.bytes, absl::StrCat("message ", i));
  }
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(false));
}

TEST_F(UnixSocketTest, ALoopKeepsDescriptorsAndNobodyElseSendsToIt) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd loop, LoopUnix());
  EXPECT_THAT(SendUnix(loop.get(), "p", {source_.get()}), IsOkAndHolds(true));
  source_.reset();
  UnixMessage message;
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(false)) << "it is still open";
  sockaddr_un name;
  socklen_t length = sizeof(name);
  ASSERT_EQ(getsockname(loop.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
  const UniqueFd other(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(sendto(other.get(), "x", 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&name), length), -1);
  EXPECT_EQ(errno, EPERM);
  for (const int flags : {int{MSG_PEEK}, 0}) {
    ASSERT_THAT(ReceiveUnix(loop.get(), &message, flags), IsOkAndHolds(true));
    ASSERT_EQ(message.descriptors.size(), 1);
    EXPECT_THAT(SendUnix(message.descriptors[0].get(), "back", {}), IsOkAndHolds(true));
  }
  EXPECT_THAT(ReceiveUnix(loop.get(), &message), IsOkAndHolds(false));
}

// The peer leaves without reading all that it was sent, which resets the connection: what it said is still heard.
TEST_F(UnixSocketTest, WhatAPeerSaidBeforeItLeftIsHeard) {
  EXPECT_THAT(SendUnix(target_.get(), "never read", {}), IsOkAndHolds(true));
  EXPECT_THAT(SendUnix(source_.get(), "last words", {}), IsOkAndHolds(true));
  source_.reset();
  UnixMessage message;
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), IsOkAndHolds(true));
  EXPECT_EQ(message.bytes, "last words");
  EXPECT_THAT(ReceiveUnix(target_.get(), &message), StatusIs(Code::kUnavailable, "connection closed by peer"));
  EXPECT_THAT(SendUnix(target_.get(), "x", {}), StatusIs(Code::kUnavailable, "connection closed by peer"));
}

TEST_F(UnixSocketTest, DescriptorsBeyondTheLimitAreAnErrorThatNamesIt) {
  EXPECT_THAT(SendUnix(source_.get(), "two", {listener_.get(), listener_.get()}), IsOkAndHolds(true));
  const int socket = target_.get();
  // Descriptors of ours are closed in a forked child; this one is meant to be seen there.
  const int kept = dup(socket);
  const int in_child = RunInForkedChild(
      [kept] {
        const rlimit limits = {0, 0};
        if (setrlimit(RLIMIT_NOFILE, &limits) != 0) return 1;
        UnixMessage message;
        const absl::Status status = ReceiveUnix(kept, &message).status();
        if (!absl::IsResourceExhausted(status)) return 2;
        return absl::StrContains(status.message(), "RLIMIT_NOFILE allows 0") ? 0 : 3;
      },
      Deadline::AfterMs(30'000));
  close(kept);
  EXPECT_EQ(in_child, 0);
}

}  // namespace
}  // namespace lockstep
