// The coordinator seen from its port: what it does about unauthenticated peers, garbage and ranks that do not read.

#include "transport/control/control_coordinator.h"

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_connection.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_testing.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace control {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A client made of bare frames.
class RawPeer {
 public:
  explicit RawPeer(const SocketAddress& coordinator)
      : connection_(*Connect(coordinator, Soon()), kCoordinatorFrameBytesMax) {}

  void SendBytes(absl::string_view bytes) {
    EXPECT_THAT(SendAll(connection_.socket(), bytes.data(), bytes.size(), Soon()), IsOk());
  }
  void Send(const Message& message) { SendBytes(Encode(message)); }

  // The next message that is no heartbeat; UNAVAILABLE once the coordinator has closed the connection.
  absl::StatusOr<Message> Receive(Deadline deadline = Soon()) {
    for (;;) {
      while (!messages_.empty()) {
        Message message = std::move(messages_.front());
        messages_.erase(messages_.begin());
        const Ping* const ping = std::get_if<Ping>(&message);
        if (ping == nullptr || ping->nonce != 0) return message;
        ++heartbeats_;
      }
      if (closed_) return absl::UnavailableError("closed");
      if (deadline.passed()) return absl::DeadlineExceededError("nothing came");
      pollfd entry = {connection_.socket(), POLLIN, 0};
      poll(&entry, 1, deadline.remaining_ms());
      closed_ = connection_.Receive(&messages_) != Connection::Input::kOpen;
    }
  }
  template <typename T>
  absl::StatusOr<T> ReceiveA() {
    absl::StatusOr<Message> message = Receive();
    if (!message.ok()) return message.status();
    if (T* body = std::get_if<T>(&*message)) return *std::move(body);
    return absl::InternalError("another message came");
  }
  int heartbeats() const { return heartbeats_; }

 private:
  Connection connection_;
  std::vector<Message> messages_;
  int heartbeats_ = 0;
  bool closed_ = false;
};

class CoordinatorTest : public ::testing::Test {
 protected:
  void Start(int size, milliseconds peer_timeout = milliseconds(20000),
             milliseconds hello_timeout = milliseconds(20000)) {
    Coordinator::Options options;
    options.bind_address = LoopbackAddress();
    options.size = size;
    options.job_id = "job";
    options.world_id = 42;
    options.peer_timeout = peer_timeout;
    options.hello_timeout = hello_timeout;
    options.self.host = "h";
    options.self.pid = 70;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(coordinator_, Coordinator::Start(options));
    size_ = size;
  }
  std::unique_ptr<RawPeer> ConnectAs(int rank) {
    auto peer = std::make_unique<RawPeer>(coordinator_->address());
    peer->Send(HelloOf(rank, size_));
    const absl::StatusOr<Welcome> welcome = peer->ReceiveA<Welcome>();
    EXPECT_THAT(welcome, IsOk());
    return peer;
  }
  // A world of two is formed.
  void Form(milliseconds peer_timeout = milliseconds(20000)) {
    Start(2, peer_timeout);
    zero_ = ConnectAs(0);
    one_ = ConnectAs(1);
    Join();
  }
  void Join() {
    zero_->Send(JoinOf(0));
    one_->Send(JoinOf(1));
    EXPECT_THAT(zero_->ReceiveA<Joined>(), IsOk());
    EXPECT_THAT(one_->ReceiveA<Joined>(), IsOk());
  }

  int size_ = 0;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<RawPeer> zero_, one_;
};

TEST(HeartbeatInterval, IsAFifthOfTheTimeoutWithinBounds) {
  EXPECT_EQ(HeartbeatInterval(milliseconds(300)), milliseconds(60));
  EXPECT_EQ(HeartbeatInterval(milliseconds(1)), milliseconds(10));
  EXPECT_EQ(HeartbeatInterval(milliseconds(30000)), milliseconds(1000));
  EXPECT_EQ(StallLimit(milliseconds(300)), milliseconds(150));
  EXPECT_EQ(StallLimit(milliseconds(10)), milliseconds(20));
}

TEST(SilenceText, UsesWholeSecondsWhereItCan) {
  EXPECT_EQ(SilenceText(milliseconds(300)), "is unresponsive: no heartbeat for 300 ms");
  EXPECT_EQ(SilenceText(milliseconds(30000)), "is unresponsive: no heartbeat for 30 s");
}

TEST_F(CoordinatorTest, WelcomesAndBeats) {
  Start(1);
  RawPeer peer(coordinator_->address());
  peer.Send(HelloOf(0, size_));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Welcome welcome, peer.ReceiveA<Welcome>());
  EXPECT_EQ(welcome.world, 42u);
  EXPECT_EQ(welcome.peer_timeout_ms, 20000u);
  EXPECT_EQ(welcome.coordinator.pid, 70);
  const Deadline deadline = Soon();
  while (peer.heartbeats() == 0 && !deadline.passed()) {
    ASSERT_THAT(peer.Receive(Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_GE(peer.heartbeats(), 1);
}

TEST_F(CoordinatorTest, GarbageIsDroppedAndTheWorldFormsAllTheSame) {
  Start(2);
  zero_ = ConnectAs(0);
  const std::string long_hello = Encode(Waiting{std::string(kHelloBytesMax, 'x')});
  std::string foreign = Encode(HelloOf(1, size_));
  foreign[kFrameHeaderBytes + 1] = 'X';
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4, '\0'), std::string(5, '\xff'),
                                   long_hello, Encode(Disconnect{}), foreign}) {
    RawPeer peer(coordinator_->address());
    peer.SendBytes(bytes);
    EXPECT_THAT(peer.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  }
  one_ = ConnectAs(1);
  Join();
}

TEST_F(CoordinatorTest, HalfAHelloAndSilenceAreDroppedAfterAWhile) {
  Start(1, milliseconds(1000), milliseconds(20));
  RawPeer half(coordinator_->address());
  half.SendBytes(Encode(HelloOf(0, size_)).substr(0, 9));
  RawPeer silent(coordinator_->address());
  EXPECT_THAT(half.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(silent.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
}

TEST_F(CoordinatorTest, UnauthenticatedPeersAreBoundedAndTheOldestGoesFirst) {
  Start(1);
  std::vector<std::unique_ptr<RawPeer>> unauthenticated;
  for (int i = 0; i < 130; ++i) unauthenticated.push_back(std::make_unique<RawPeer>(coordinator_->address()));
  EXPECT_THAT(unauthenticated[0]->Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  ConnectAs(0);
}

// Whoever connects meanwhile would wait for a welcome, and everybody for them.
TEST_F(CoordinatorTest, ACoordinatorWithoutDescriptorsFailsTheSetUp) {
  Start(3, milliseconds(1000));
  auto zero = ConnectAs(0);
  RawPeer one(coordinator_->address());
  ASSERT_THAT(one.Receive(Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  UniqueFd spare(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd lowest_free(dup(0));
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(lowest_free.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const SocketAddress address = coordinator_->address();
  ASSERT_EQ(connect(spare.get(), address.get(), address.length()) == 0 || errno == EINPROGRESS, true);
  const absl::StatusOr<JoinFailed> failed = zero->ReceiveA<JoinFailed>();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_THAT(failed, IsOk());
  EXPECT_THAT(failed->status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the coordinator of rank 0 (host h, pid 70) cannot take connections"),
                             HasSubstr("Too many open files"))));
}

TEST_F(CoordinatorTest, ARankThatBreaksTheProtocolIsNamed) {
  Form();
  one_->SendBytes("\xff\xff\xff\xff");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FailureMessage failure, zero_->ReceiveA<FailureMessage>());
  EXPECT_EQ(failure.channel, kAllChannels);
  EXPECT_THAT(failure.status,
              StatusIs(absl::StatusCode::kAborted, "rank 1 (host h, pid 71) broke the control protocol"));
}

// Rank 1 asks for more than any buffer holds and never reads: the coordinator stays responsive, and says so to rank 0.
TEST_F(CoordinatorTest, ARankThatDoesNotReadIsUnresponsive) {
  Form();
  one_->Send(PostMessage{1, 1, std::string(kPostedBytesMax, 'x')});
  for (uint64_t request = 0; request < 1000; ++request) one_->Send(AwaitMessages{request, 1, 1, 1});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FailureMessage failure, zero_->ReceiveA<FailureMessage>());
  EXPECT_THAT(failure.status,
              StatusIs(absl::StatusCode::kAborted,
                       "rank 1 (host h, pid 71) is unresponsive: it does not read its control connection"));
}

TEST_F(CoordinatorTest, DisconnectsWhenItEnds) {
  Start(1);
  auto zero = ConnectAs(0);
  RawPeer peer(coordinator_->address());
  coordinator_.reset();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const JoinFailed failed, zero->ReceiveA<JoinFailed>());
  EXPECT_THAT(failed.status,
              StatusIs(absl::StatusCode::kAborted, "rank 0 (host h, pid 70) left before the world had formed"));
  EXPECT_THAT(zero->ReceiveA<Disconnect>(), IsOk());
  EXPECT_THAT(zero->Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(peer.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
}

}  // namespace
}  // namespace control
}  // namespace lockstep
