#include "transport/tcp/congestion_control.h"

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

class CongestionControlTest : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const SocketAddress address, SocketAddress::Parse("127.0.0.1:0"));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(listener_, Listen(address));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const SocketAddress listening, LocalAddress(listener_.get()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(socket_, Connect(listening, Deadline::AfterMs(10'000), false));
  }

  UniqueFd listener_;
  UniqueFd socket_;
};

TEST_F(CongestionControlTest, AConnectionOverLoopbackStaysOnTheHost) {
  EXPECT_TRUE(StaysOnHost(socket_.get()));
  EXPECT_FALSE(StaysOnHost(listener_.get())) << "connected with nobody";
}

TEST_F(CongestionControlTest, AConnectionThatStaysOnTheHostGetsReno) {
  ChooseCongestionControl(socket_.get(), "");
  EXPECT_EQ(CongestionControlOf(socket_.get()), "reno");
}

TEST_F(CongestionControlTest, TheOptionComesBeforeTheRule) {
  const std::string before = CongestionControlOf(listener_.get());  // the system's default: allowed, whatever it is
  ASSERT_THAT(SetCongestionControl(socket_.get(), "reno"), IsOk());
  ChooseCongestionControl(socket_.get(), before);
  EXPECT_EQ(CongestionControlOf(socket_.get()), before);
}

TEST_F(CongestionControlTest, AnUnknownNameLeavesTheConnectionAsItIs) {
  const std::string before = CongestionControlOf(socket_.get());
  ChooseCongestionControl(socket_.get(), "nonsense");
  EXPECT_EQ(CongestionControlOf(socket_.get()), before);
  EXPECT_THAT(SetCongestionControl(socket_.get(), "nonsense"),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("'nonsense' (this system allows: ")));
}

}  // namespace
}  // namespace lockstep
