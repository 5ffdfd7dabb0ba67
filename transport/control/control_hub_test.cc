// The hub seen from its port: what strangers, half-wits and ranks that do not read can do to it.

#include "transport/control/control_hub.h"

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
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_connection.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace control {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kWorldId = 42;

Deadline Soon() { return Deadline::AfterMs(20'000); }

// A client made of bare frames.
class RawPeer {
 public:
  explicit RawPeer(const SocketAddress& hub) : connection_(*Connect(hub, Soon(), false), kHubFrameBytesMax) {}

  void SendBytes(absl::string_view bytes) {
    EXPECT_THAT(SendAll(connection_.socket(), bytes.data(), bytes.size(), Soon()), IsOk());
  }
  void Send(const Message& message) { SendBytes(Encode(message)); }

  // The next message that is no heartbeat; UNAVAILABLE once the hub has closed the connection.
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

class HubTest : public ::testing::Test {
 protected:
  void Start(int size, milliseconds peer_timeout, milliseconds hello_timeout) {
    Hub::Options options;
    options.bind_address = *SocketAddress::Parse("127.0.0.1:0");
    options.size = size;
    options.job_id = "job";
    options.world_id = kWorldId;
    options.peer_timeout = peer_timeout;
    options.hello_timeout = hello_timeout;
    options.self.host = "h";
    options.self.pid = 70;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(hub_, Hub::Start(options));
    size_ = size;
  }
  Hello HelloOf(int rank) const {
    Hello hello;
    hello.job_id = "job";
    hello.rank = static_cast<uint32_t>(rank);
    hello.size = static_cast<uint32_t>(size_);
    hello.world = kWorldId;
    hello.host = "h";
    hello.pid = 70 + rank;
    return hello;
  }
  std::unique_ptr<RawPeer> ConnectAs(int rank) {
    auto peer = std::make_unique<RawPeer>(hub_->address());
    peer->Send(HelloOf(rank));
    const absl::StatusOr<Welcome> welcome = peer->ReceiveA<Welcome>();
    EXPECT_THAT(welcome, IsOk());
    return peer;
  }
  void JoinAs(RawPeer* peer, int rank) {
    control::Join join;
    join.member.rank = Rank(rank);
    join.member.host = "h";
    join.member.pid = 70 + rank;
    peer->Send(join);
  }

  int size_ = 0;
  std::unique_ptr<Hub> hub_;
};

TEST(HeartbeatInterval, IsAFifthOfTheTimeoutWithinBounds) {
  EXPECT_EQ(HeartbeatInterval(milliseconds(300)), milliseconds(60));
  EXPECT_EQ(HeartbeatInterval(milliseconds(1)), milliseconds(10));
  EXPECT_EQ(HeartbeatInterval(milliseconds(30000)), milliseconds(1000));
  EXPECT_EQ(StallLimit(milliseconds(300)), milliseconds(150));
  EXPECT_EQ(StallLimit(milliseconds(10)), milliseconds(20));
}

TEST_F(HubTest, WelcomesAndBeats) {
  Start(1, milliseconds(20000), milliseconds(20000));
  RawPeer peer(hub_->address());
  peer.Send(HelloOf(0));
  const absl::StatusOr<Welcome> welcome = peer.ReceiveA<Welcome>();
  ASSERT_THAT(welcome, IsOk());
  EXPECT_EQ(welcome->world, kWorldId);
  EXPECT_EQ(welcome->peer_timeout_ms, 20000u);
  EXPECT_EQ(welcome->hub.pid, 70);
  const Deadline deadline = Soon();
  while (peer.heartbeats() == 0 && !deadline.passed()) {
    ASSERT_THAT(peer.Receive(Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_GE(peer.heartbeats(), 1);
}

TEST_F(HubTest, GarbageIsDroppedAndTheWorldFormsAllTheSame) {
  Start(2, milliseconds(20000), milliseconds(20000));
  auto zero = ConnectAs(0);
  const std::string long_hello = Encode(Waiting{std::string(kHelloBytesMax, 'x')});
  std::string foreign = Encode(HelloOf(1));
  foreign[kFrameHeaderBytes + 1] = 'X';
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4, '\0'), std::string(5, '\xff'),
                                   long_hello, Encode(Goodbye{}), foreign}) {
    RawPeer stranger(hub_->address());
    stranger.SendBytes(bytes);
    EXPECT_THAT(stranger.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  }
  auto one = ConnectAs(1);
  JoinAs(zero.get(), 0);
  JoinAs(one.get(), 1);
  EXPECT_THAT(zero->ReceiveA<Joined>(), IsOk());
  EXPECT_THAT(one->ReceiveA<Joined>(), IsOk());
}

TEST_F(HubTest, HalfAHelloAndSilenceAreDroppedAfterAWhile) {
  Start(1, milliseconds(1000), milliseconds(20));
  RawPeer half(hub_->address());
  half.SendBytes(Encode(HelloOf(0)).substr(0, 9));
  RawPeer silent(hub_->address());
  EXPECT_THAT(half.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(silent.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
}

TEST_F(HubTest, StrangersAreBoundedAndTheOldestGoesFirst) {
  Start(1, milliseconds(20000), milliseconds(20000));
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (int i = 0; i < 130; ++i) strangers.push_back(std::make_unique<RawPeer>(hub_->address()));
  EXPECT_THAT(strangers[0]->Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  ConnectAs(0);
}

TEST_F(HubTest, AHelloThatDoesNotBelongIsAnsweredWithTheReason) {
  Start(2, milliseconds(20000), milliseconds(20000));
  auto zero = ConnectAs(0);
  const auto answer = [this](auto change) -> absl::StatusOr<Reject> {
    RawPeer peer(hub_->address());
    Hello hello = HelloOf(1);
    change(&hello);
    peer.Send(hello);
    return peer.ReceiveA<Reject>();
  };
  const auto check = [](const absl::StatusOr<Reject>& reject, absl::StatusCode code, const char* text) {
    ASSERT_THAT(reject, IsOk());
    EXPECT_THAT(reject->status, StatusIs(code, HasSubstr(text)));
  };
  check(answer([](Hello* hello) { hello->version = 9; }), absl::StatusCode::kFailedPrecondition, "protocol version 3");
  check(answer([](Hello* hello) { hello->job_id = "x"; }), absl::StatusCode::kFailedPrecondition, "job 'x'");
  check(answer([](Hello* hello) { hello->world = 3; }), absl::StatusCode::kUnavailable, "another world's");
  check(answer([](Hello* hello) { hello->rank = 0; }), absl::StatusCode::kAlreadyExists, "rank 0 (host h, pid 70)");
  auto one = ConnectAs(1);
  JoinAs(zero.get(), 0);
  JoinAs(one.get(), 1);
  EXPECT_THAT(zero->ReceiveA<Joined>(), IsOk());
}

TEST_F(HubTest, AnotherWorldSizeIsToldToAll) {
  Start(3, milliseconds(20000), milliseconds(20000));
  auto zero = ConnectAs(0);
  RawPeer other(hub_->address());
  Hello hello = HelloOf(1);
  hello.size = 4;
  other.Send(hello);
  const absl::StatusOr<Reject> reject = other.ReceiveA<Reject>();
  const absl::StatusOr<JoinFailed> failed = zero->ReceiveA<JoinFailed>();
  ASSERT_THAT(reject, IsOk());
  ASSERT_THAT(failed, IsOk());
  EXPECT_THAT(failed->status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("4 according to rank 1")));
  EXPECT_EQ(reject->status, failed->status);
  EXPECT_EQ(hub_->untold(), std::vector<int>({2}));
}

// Whoever connects meanwhile would wait for a welcome, and everybody for them.
TEST_F(HubTest, AHubWithoutDescriptorsFailsTheSetUp) {
  Start(3, milliseconds(1000), milliseconds(20000));
  auto zero = ConnectAs(0);
  RawPeer one(hub_->address());
  ASSERT_THAT(one.Receive(Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  UniqueFd spare(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd lowest_free(dup(0));
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(lowest_free.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const SocketAddress address = hub_->address();
  ASSERT_EQ(connect(spare.get(), address.get(), address.length()) == 0 || errno == EINPROGRESS, true);
  const absl::StatusOr<JoinFailed> failed = zero->ReceiveA<JoinFailed>();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_THAT(failed, IsOk());
  EXPECT_THAT(failed->status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the control hub of rank 0 (host h, pid 70) cannot take connections"),
                             HasSubstr("Too many open files"))));
}

TEST_F(HubTest, ARankThatBreaksTheProtocolIsNamed) {
  Start(2, milliseconds(20000), milliseconds(20000));
  auto zero = ConnectAs(0);
  auto one = ConnectAs(1);
  JoinAs(zero.get(), 0);
  JoinAs(one.get(), 1);
  ASSERT_THAT(zero->ReceiveA<Joined>(), IsOk());
  one->SendBytes("\xff\xff\xff\xff");
  const absl::StatusOr<FailureMessage> failure = zero->ReceiveA<FailureMessage>();
  ASSERT_THAT(failure, IsOk());
  EXPECT_EQ(failure->channel, kAllChannels);
  EXPECT_THAT(failure->status,
              StatusIs(absl::StatusCode::kAborted, "rank 1 (host h, pid 71) broke the control protocol"));
}

// Rank 1 asks for more than any buffer holds and never reads: the hub stays responsive, and says so to rank 0.
TEST_F(HubTest, ARankThatDoesNotReadIsUnresponsive) {
  Start(2, milliseconds(20000), milliseconds(20000));
  auto zero = ConnectAs(0);
  auto one = ConnectAs(1);
  JoinAs(zero.get(), 0);
  JoinAs(one.get(), 1);
  ASSERT_THAT(zero->ReceiveA<Joined>(), IsOk());
  ASSERT_THAT(one->ReceiveA<Joined>(), IsOk());
  one->Send(PostNote{1, 1, std::string(kNoteBytesMax, 'x')});
  for (uint64_t request = 0; request < 1000; ++request) one->Send(AwaitNotes{request, 1, 1, 1});
  const absl::StatusOr<FailureMessage> failure = zero->ReceiveA<FailureMessage>();
  ASSERT_THAT(failure, IsOk());
  EXPECT_THAT(failure->status,
              StatusIs(absl::StatusCode::kAborted,
                       "rank 1 (host h, pid 71) is unresponsive: it does not read its control connection"));
}

TEST_F(HubTest, SilenceOfARankIsAnnounced) {
  Start(2, milliseconds(2500), milliseconds(20000));
  auto zero = ConnectAs(0);
  auto one = ConnectAs(1);
  JoinAs(zero.get(), 0);
  JoinAs(one.get(), 1);
  ASSERT_THAT(zero->ReceiveA<Joined>(), IsOk());
  // Rank 0 speaks on, rank 1 does not.
  absl::StatusOr<Message> message = absl::DeadlineExceededError("");
  const Deadline deadline = Soon();
  while (absl::IsDeadlineExceeded(message.status()) && !deadline.passed()) {
    zero->Send(Pong{});
    message = zero->Receive(Deadline::AfterMs(20));
  }
  ASSERT_THAT(message, IsOk());
  ASSERT_TRUE(std::holds_alternative<FailureMessage>(*message));
  EXPECT_THAT(
      std::get<FailureMessage>(*message).status,
      StatusIs(absl::StatusCode::kAborted, "rank 1 (host h, pid 71) is unresponsive: no heartbeat for 2500 ms"));
}

TEST_F(HubTest, SaysGoodbyeWhenItEnds) {
  Start(1, milliseconds(20000), milliseconds(20000));
  auto zero = ConnectAs(0);
  RawPeer stranger(hub_->address());
  hub_.reset();
  const absl::StatusOr<JoinFailed> failed = zero->ReceiveA<JoinFailed>();
  ASSERT_THAT(failed, IsOk());
  EXPECT_THAT(failed->status,
              StatusIs(absl::StatusCode::kAborted, "rank 0 (host h, pid 70) left before the world had formed"));
  EXPECT_THAT(zero->ReceiveA<Goodbye>(), IsOk());
  EXPECT_THAT(zero->Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(stranger.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
}

}  // namespace
}  // namespace control
}  // namespace lockstep
