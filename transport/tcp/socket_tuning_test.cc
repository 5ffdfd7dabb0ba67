#include "transport/tcp/socket_tuning.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

#include "absl/status/status.h"
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
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(socket_, Connect(listening, Deadline::AfterMs(10'000)));
  }

  int Buffer(int option) {
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    EXPECT_EQ(getsockopt(socket_.get(), SOL_SOCKET, option, &bytes, &length), 0);
    return bytes;
  }

  static std::string CongestionControlOf(const UniqueFd& socket) {
    char name[16] = "";  // TCP_CA_NAME_MAX
    socklen_t length = sizeof(name) - 1;
    EXPECT_EQ(getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    return name;
  }

  UniqueFd listener_;
  UniqueFd socket_;
};

TEST_F(SocketTuningTest, BuffersAreTheKernelsUnlessAskedFor) {
  const int send_bytes = Buffer(SO_SNDBUF), receive_bytes = Buffer(SO_RCVBUF);
  Tune(socket_.get(), {});
  EXPECT_EQ(Buffer(SO_SNDBUF), send_bytes);
  EXPECT_EQ(Buffer(SO_RCVBUF), receive_bytes);
  EXPECT_EQ(CongestionControlOf(socket_), "reno") << "the connection stays on the host";
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
  const std::string before = CongestionControlOf(socket_);
  SocketTuning tuning;
  tuning.congestion_control = "nonsense";
  tuning.send_buffer_bytes = 20'000;
  Tune(socket_.get(), tuning);
  EXPECT_EQ(Buffer(SO_SNDBUF), 40'000);
  EXPECT_EQ(CongestionControlOf(socket_), before);
}

TEST_F(SocketTuningTest, TheOptionComesBeforeTheRule) {
  SocketTuning tuning;
  tuning.congestion_control = CongestionControlOf(listener_);  // the system's default: allowed, whatever it is
  Tune(socket_.get(), {});
  Tune(socket_.get(), tuning);
  EXPECT_EQ(CongestionControlOf(socket_), tuning.congestion_control);
}

TEST_F(SocketTuningTest, ASocketThatIsConnectedWithNobodyKeepsTheDefault) {
  const std::string before = CongestionControlOf(listener_);
  Tune(listener_.get(), {});
  EXPECT_EQ(CongestionControlOf(listener_), before);
}

TEST_F(SocketTuningTest, AnUnknownCongestionControlIsAnErrorThatNamesWhatIsAllowed) {
  EXPECT_THAT(CheckCongestionControl("nonsense"),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("'nonsense' (this system allows: ")));
  EXPECT_THAT(CheckCongestionControl("reno"), IsOk());
  EXPECT_THAT(CheckCongestionControl(""), IsOk());
}

}  // namespace
}  // namespace lockstep
