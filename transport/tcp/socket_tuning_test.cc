#include "transport/tcp/socket_tuning.h"

#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

class SocketTuningTest : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const SocketAddress address, SocketAddress::Parse("127.0.0.1:0"));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(listener_, Listen(address));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const SocketAddress listening, LocalAddress(listener_.get()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(socket_, Connect(listening, Deadline::AfterMs(10'000), false));
  }

  int Buffer(int option) {
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    EXPECT_EQ(getsockopt(socket_.get(), SOL_SOCKET, option, &bytes, &length), 0);
    return bytes;
  }

  UniqueFd listener_;
  UniqueFd socket_;
};

TEST_F(SocketTuningTest, BuffersAreTheKernelsUnlessAskedFor) {
  const int send_bytes = Buffer(SO_SNDBUF), receive_bytes = Buffer(SO_RCVBUF);
  Tune(socket_.get(), {});
  EXPECT_EQ(Buffer(SO_SNDBUF), send_bytes);
  EXPECT_EQ(Buffer(SO_RCVBUF), receive_bytes);
  EXPECT_EQ(CongestionControlOf(socket_.get()), "reno") << "the connection stays on the host";
}

TEST_F(SocketTuningTest, SetsWhatIsAskedFor) {
  SocketTuning tuning;
  tuning.send_buffer_bytes = 20'000;
  tuning.receive_buffer_bytes = 30'000;
  Tune(socket_.get(), tuning);
  // The kernel doubles what it is told.
  EXPECT_EQ(Buffer(SO_SNDBUF), 40'000);
  EXPECT_EQ(Buffer(SO_RCVBUF), 60'000);
}

TEST_F(SocketTuningTest, WhatCannotBeHadIsLeft) {
  SocketTuning tuning;
  tuning.congestion_control = "nonsense";
  tuning.send_buffer_bytes = 20'000;
  Tune(socket_.get(), tuning);
  EXPECT_EQ(Buffer(SO_SNDBUF), 40'000);
}

TEST_F(SocketTuningTest, AConnectionOverLoopbackStaysOnTheHost) {
  EXPECT_TRUE(StaysOnHost(socket_.get()));
  EXPECT_FALSE(StaysOnHost(listener_.get())) << "connected with nobody";
}

TEST_F(SocketTuningTest, AConnectionThatStaysOnTheHostGetsReno) {
  ChooseCongestionControl(socket_.get(), "");
  EXPECT_EQ(CongestionControlOf(socket_.get()), "reno");
}

TEST_F(SocketTuningTest, TheOptionComesBeforeTheRule) {
  const std::string before = CongestionControlOf(listener_.get());  // the system's default: allowed, whatever it is
  ASSERT_THAT(SetCongestionControl(socket_.get(), "reno"), IsOk());
  ChooseCongestionControl(socket_.get(), before);
  EXPECT_EQ(CongestionControlOf(socket_.get()), before);
}

TEST_F(SocketTuningTest, AnUnknownNameLeavesTheConnectionAsItIs) {
  const std::string before = CongestionControlOf(socket_.get());
  ChooseCongestionControl(socket_.get(), "nonsense");
  EXPECT_EQ(CongestionControlOf(socket_.get()), before);
  EXPECT_THAT(SetCongestionControl(socket_.get(), "nonsense"),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("'nonsense' (this system allows: ")));
}

}  // namespace
}  // namespace lockstep
