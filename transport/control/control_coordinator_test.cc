// The coordinator seen from its port: what it does about unauthenticated peers, garbage and ranks that do not read.

#include "transport/control/control_coordinator.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/log_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "transport/control/control_connection.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_testing.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"
#include "transport/secure/secret.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// A client made of frames. Its handshake goes on in Receive.
class RawPeer {
 public:
  RawPeer(const SocketAddress& coordinator, const Credentials& credentials)
      : RawPeer(*Connect(coordinator, Soon()), credentials) {}
  RawPeer(UniqueFd socket, const Credentials& credentials)
      : connection_(std::move(socket), Channel::Side::kConnects, credentials) {}

  // Past the channel.
  void SendBytes(absl::string_view bytes) {
    EXPECT_THAT(SendAll(connection_.socket(), bytes.data(), bytes.size(), Soon()), IsOk());
  }
  void SendFrame(const std::string& frame) {
    EXPECT_TRUE(connection_.Queue(std::make_shared<const std::string>(frame)));
    for (const Deadline deadline = Soon(); !deadline.passed(); Poll(deadline)) {
      connection_.Flush();
      if (!connection_.wants_to_write()) break;
    }
  }
  void Send(const Message& message) { SendFrame(Encode(message)); }

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
      if (input_ != Connection::Input::kOpen) return absl::UnavailableError("closed");
      if (deadline.passed()) return absl::DeadlineExceededError("nothing came");
      connection_.Flush();
      Poll(deadline, POLLIN);
      input_ = connection_.Receive(&messages_);
      connection_.Flush();
    }
  }
  template <typename T>
  absl::StatusOr<T> ReceiveA(Deadline deadline = Soon()) {
    absl::StatusOr<Message> message = Receive(deadline);
    if (!message.ok()) return message.status();
    if (T* body = std::get_if<T>(&*message)) return *std::move(body);
    return absl::InternalError("another message came");
  }
  int heartbeats() const { return heartbeats_; }
  Connection::Input input() const { return input_; }
  Refusal refusal() const { return connection_.refusal(); }
  const absl::Status& why() const { return connection_.why(); }

 private:
  void Poll(Deadline deadline, short events = 0) {
    if (connection_.wants_to_write()) events |= POLLOUT;
    pollfd entry = {connection_.socket(), events, 0};
    poll(&entry, 1, deadline.remaining_ms());
  }

  Connection connection_;
  std::vector<Message> messages_;
  int heartbeats_ = 0;
  Connection::Input input_ = Connection::Input::kOpen;
};

// Connects and speaks no protocol.
class Outsider {
 public:
  explicit Outsider(const SocketAddress& coordinator) : socket_(*Connect(coordinator, Soon())) {}

  // False once the coordinator has closed the connection.
  bool Send(absl::string_view bytes) const { return SendAll(socket_.get(), bytes.data(), bytes.size(), Soon()).ok(); }
  void SayNoMore() const { EXPECT_EQ(shutdown(socket_.get(), SHUT_WR), 0); }
  // Exactly so many bytes; "" if fewer come.
  std::string Read(size_t bytes) const {
    std::string read(bytes, '\0');
    return ReceiveAll(socket_.get(), &read[0], bytes, Soon()).ok() ? read : "";
  }
  // What comes until the coordinator closes.
  std::string ReadToTheEnd() const {
    std::string read;
    for (char byte; ReceiveAll(socket_.get(), &byte, 1, Soon()).ok();) read.push_back(byte);
    return read;
  }

 private:
  const UniqueFd socket_;
};

UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

void StartToConnect(const UniqueFd& socket, const SocketAddress& address) {
  ASSERT_TRUE(connect(socket.get(), address.get(), address.length()) == 0 || errno == EINPROGRESS);
}

class CoordinatorTest : public ::testing::TestWithParam<SecurityLevel> {
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
    options.credentials = credentials();
    options.world_secret = credentials().secret == nullptr ? nullptr : SecretOf('w');
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(coordinator_, Coordinator::Start(options));
    size_ = size;
  }
  std::unique_ptr<RawPeer> ConnectAs(int rank) {
    return Welcomed(rank, std::make_unique<RawPeer>(coordinator_->address(), credentials()));
  }
  std::unique_ptr<RawPeer> Welcomed(int rank, std::unique_ptr<RawPeer> peer) {
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

  static Credentials credentials() {
    return GetParam() == SecurityLevel::kNone ? Credentials() : Secured('s', GetParam());
  }
  uint64_t refused(Refusal kind) const { return coordinator_->refusals().count(kind); }

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

TEST_P(CoordinatorTest, WelcomesAndBeats) {
  Start(1);
  RawPeer peer(coordinator_->address(), credentials());
  peer.Send(HelloOf(0, size_));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Welcome welcome, peer.ReceiveA<Welcome>());
  ASSERT_EQ(welcome.secret == nullptr, GetParam() == SecurityLevel::kNone);
  if (welcome.secret != nullptr) {
    EXPECT_EQ(welcome.secret->bytes(), SecretOf('w')->bytes());
  }
  EXPECT_EQ(welcome.world, 42u);
  EXPECT_EQ(welcome.peer_timeout_ms, 20000u);
  EXPECT_EQ(welcome.coordinator.pid, 70);
  const Deadline deadline = Soon();
  while (peer.heartbeats() == 0 && !deadline.passed()) {
    ASSERT_THAT(peer.Receive(Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_GE(peer.heartbeats(), 1);
}

TEST_P(CoordinatorTest, GarbageIsDroppedAndTheWorldFormsAllTheSame) {
  Start(2);
  zero_ = ConnectAs(0);
  const std::string long_hello = Encode(Waiting{std::string(kHelloBytesMax, 'x')});
  std::string foreign = Encode(HelloOf(1, size_));
  foreign[kFrameHeaderBytes + 1] = 'X';
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4, '\0'), std::string(5, '\xff')}) {
    const uint64_t before = refused(Refusal::kNotOurs);
    const Outsider outsider(coordinator_->address());
    EXPECT_TRUE(outsider.Send(bytes));
    EXPECT_LE(outsider.ReadToTheEnd().size(), kPreambleBytes);
    EXPECT_EQ(refused(Refusal::kNotOurs), before + 1);
  }
  // Of one who has the secret, if there is one.
  for (const std::string& bytes :
       {std::string(4, '\0'), std::string(5, '\xff'), long_hello, Encode(Disconnect{}), Encode(JoinOf(1)), foreign}) {
    const uint64_t before = refused(Refusal::kBroken);
    RawPeer peer(coordinator_->address(), credentials());
    peer.SendFrame(bytes);
    EXPECT_THAT(peer.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
    EXPECT_EQ(refused(Refusal::kBroken), before + 1);
  }
  one_ = ConnectAs(1);
  Join();
}

TEST_P(CoordinatorTest, HalfAHelloAndSilenceAreDroppedAfterAWhile) {
  Start(1, milliseconds(1000), milliseconds(20));
  RawPeer half(coordinator_->address(), credentials());
  half.SendFrame(Encode(HelloOf(0, size_)).substr(0, 9));
  // Through with the handshake, if that is in time.
  RawPeer idle(coordinator_->address(), credentials());
  const Outsider silent(coordinator_->address());
  EXPECT_THAT(half.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(idle.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_EQ(silent.ReadToTheEnd(), "");
  EXPECT_EQ(refused(Refusal::kSilent), 3u);
}

TEST_P(CoordinatorTest, WhoLeavesBeforeItsHelloIsCounted) {
  Start(1);
  const std::string start = Channel(Purpose::kControl, Channel::Side::kConnects, credentials()).Start();
  for (const size_t bytes : {size_t{0}, start.size() - 1}) {
    const uint64_t before = refused(Refusal::kGaveUp);
    const Outsider outsider(coordinator_->address());
    EXPECT_TRUE(outsider.Send(start.substr(0, bytes)));
    outsider.SayNoMore();
    outsider.ReadToTheEnd();
    EXPECT_EQ(refused(Refusal::kGaveUp), before + 1) << bytes << " bytes";
  }
  EXPECT_EQ(coordinator_->refusals().total(), 2u);
}

// A byte now and then buys no time.
TEST_P(CoordinatorTest, SlowPeersAreDroppedAsSilentOnesAre) {
  Start(1, milliseconds(1000), milliseconds(100));
  Channel channel(Purpose::kControl, Channel::Side::kConnects, credentials());
  const std::string start = channel.Start();
  const Outsider slow(coordinator_->address());
  const Deadline deadline = Soon();
  for (size_t i = 0; i < start.size() && slow.Send(start.substr(i, 1)) && refused(Refusal::kSilent) == 0; ++i) {
    ASSERT_FALSE(deadline.passed());
    std::this_thread::sleep_for(milliseconds(20));
  }
  slow.ReadToTheEnd();
  EXPECT_EQ(refused(Refusal::kSilent), 1u);
}

TEST_P(CoordinatorTest, AThousandUnauthenticatedPeersAreBoundedAndKeepNobodyOut) {
  const DescriptorLimit limit(300);
  Start(2);
  const Outsider first(coordinator_->address());
  std::deque<Outsider> outsiders;
  for (int i = 0; i < 1000; ++i) {
    outsiders.emplace_back(coordinator_->address());
    if (outsiders.size() > 150) outsiders.pop_front();
    if (i == 400) zero_ = ConnectAs(0);
    if (i == 800) one_ = ConnectAs(1);
  }
  EXPECT_EQ(first.ReadToTheEnd(), "");
  EXPECT_GE(refused(Refusal::kCrowded), 1u);
  Join();
  EXPECT_THAT(coordinator_->status(), IsOk());
}

TEST_P(CoordinatorTest, RealRanksGetInWithoutDescriptorsForUnauthenticatedPeersToo) {
  Start(2);
  std::vector<UniqueFd> outsiders;
  for (int i = 0; i < 12; ++i) outsiders.push_back(NewSocket());
  UniqueFd ranks[] = {NewSocket(), NewSocket()};
  const DescriptorLimit limit(3);
  for (const UniqueFd& outsider : outsiders) StartToConnect(outsider, coordinator_->address());
  StartToConnect(ranks[0], coordinator_->address());
  zero_ = Welcomed(0, std::make_unique<RawPeer>(std::move(ranks[0]), credentials()));
  StartToConnect(ranks[1], coordinator_->address());
  one_ = Welcomed(1, std::make_unique<RawPeer>(std::move(ranks[1]), credentials()));
  Join();
  EXPECT_GE(refused(Refusal::kCrowded), 10u);
  EXPECT_THAT(coordinator_->status(), IsOk());
}

// Whoever connects meanwhile would wait for a welcome, and everybody for them.
TEST_P(CoordinatorTest, ACoordinatorWithoutDescriptorsFailsTheSetUp) {
  Start(3, milliseconds(1000));
  auto zero = ConnectAs(0);
  auto one = ConnectAs(1);
  const UniqueFd spare = NewSocket();
  absl::StatusOr<JoinFailed> failed = absl::UnknownError("");
  {
    const DescriptorLimit limit(0);
    StartToConnect(spare, coordinator_->address());
    failed = zero->ReceiveA<JoinFailed>();
    // Its rank looks for the reason in the store then.
    pollfd reset = {spare.get(), POLLIN, 0};
    EXPECT_EQ(poll(&reset, 1, 10'000), 1);
  }
  ASSERT_THAT(failed, IsOk());
  EXPECT_THAT(failed->status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the coordinator of rank 0 (host h, pid 70) cannot take connections"),
                             HasSubstr("Too many open files"))));
}

TEST_P(CoordinatorTest, ARankThatBreaksTheProtocolIsNamed) {
  Form();
  one_->SendFrame("\xff\xff\xff\xff");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FailureMessage failure, zero_->ReceiveA<FailureMessage>());
  EXPECT_EQ(failure.channel, kAllChannels);
  EXPECT_THAT(failure.status,
              StatusIs(absl::StatusCode::kAborted, "rank 1 (host h, pid 71) broke the control protocol"));
}

// Rank 1 asks for more than any buffer holds and never reads: the coordinator stays responsive, and says so to rank 0.
TEST_P(CoordinatorTest, ARankThatDoesNotReadIsUnresponsive) {
  Form(milliseconds(100'000));
  one_->Send(PostMessage{1, 1, std::string(kPostedBytesMax, 'x')});
  for (uint64_t request = 0; request < 1000; ++request) one_->Send(AwaitMessages{request, 1, 1, 1});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FailureMessage failure, zero_->ReceiveA<FailureMessage>(Deadline::Infinite()));
  EXPECT_THAT(failure.status,
              StatusIs(absl::StatusCode::kAborted,
                       "rank 1 (host h, pid 71) is unresponsive: it does not read its control connection"));
}

TEST_P(CoordinatorTest, DisconnectsWhenItEnds) {
  Start(1);
  auto zero = ConnectAs(0);
  RawPeer peer(coordinator_->address(), credentials());
  coordinator_.reset();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const JoinFailed failed, zero->ReceiveA<JoinFailed>());
  EXPECT_THAT(failed.status,
              StatusIs(absl::StatusCode::kAborted, "rank 0 (host h, pid 70) left before the world had formed"));
  EXPECT_THAT(zero->ReceiveA<Disconnect>(), IsOk());
  EXPECT_THAT(zero->Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(peer.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
}

INSTANTIATE_TEST_SUITE_P(Levels, CoordinatorTest, ::testing::Values(SecurityLevel::kNone, SecurityLevel::kAuthenticate),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ---- With a secret.

class SecuredCoordinatorTest : public CoordinatorTest {
 protected:
  // Nothing but an own preamble and a TLS alert came.
  void ExpectNothingIsTold(const std::string& answer) { EXPECT_LE(answer.size(), kPreambleBytes + 7); }
};

INSTANTIATE_TEST_SUITE_P(Levels, SecuredCoordinatorTest, ::testing::Values(SecurityLevel::kAuthenticate),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(SecuredCoordinatorTest, OthersThanRanksOfTheJobAreTurnedAwayAndCounted) {
  Start(2);
  const std::pair<Credentials, Refusal> ranks[] = {{Secured('t'), Refusal::kNoSecret},
                                                   {Credentials(), Refusal::kOtherLevel}};
  for (const auto& [other, refusal] : ranks) {
    const uint64_t before = refused(refusal);
    RawPeer peer(coordinator_->address(), other);
    peer.Send(HelloOf(1, size_));
    EXPECT_THAT(peer.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
    EXPECT_EQ(peer.input(), Connection::Input::kRefused);
    EXPECT_EQ(peer.refusal(), refusal) << peer.why();
    EXPECT_EQ(refused(refusal), before + 1);
  }

  Hello old = HelloOf(1, size_);
  old.version = 3;
  Channel to_the_store(Purpose::kStore, Channel::Side::kConnects, credentials());
  const std::string preamble("LKSP\1\0\2\1", 8);
  const std::pair<std::string, Refusal> outsiders[] = {
      {Encode(old), Refusal::kOldProtocol},
      {to_the_store.Start(), Refusal::kOtherPurpose},
      {std::string("LKSP\2\0\2\1", 8), Refusal::kOtherVersion},
      {preamble + Encode(HelloOf(1, size_)), Refusal::kBroken},
      {preamble + "\x16\x03\x01\x3f\xff" + std::string(kHandshakeBytesMax, '\x01'), Refusal::kTooLong},
  };
  for (const auto& [bytes, refusal] : outsiders) {
    const uint64_t before = refused(refusal);
    const uint64_t before_in_all = coordinator_->refusals().total();
    const Outsider outsider(coordinator_->address());
    (void)outsider.Send(bytes);
    ExpectNothingIsTold(outsider.ReadToTheEnd());
    EXPECT_EQ(coordinator_->refusals().total(), before_in_all + 1);
    EXPECT_EQ(refused(refusal), before + 1) << Text(refusal) << "; " << coordinator_->refusals().Describe();
  }

  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = coordinator_->refusals().total();
    const Outsider outsider(coordinator_->address());
    std::string bytes = i % 2 == 0 ? preamble : "";
    while (bytes.size() < 2 * kHandshakeBytesMax) bytes.push_back(static_cast<char>(random()));
    (void)outsider.Send(bytes);
    ExpectNothingIsTold(outsider.ReadToTheEnd());
    EXPECT_EQ(coordinator_->refusals().total(), before + 1);
  }

  zero_ = ConnectAs(0);
  one_ = ConnectAs(1);
  Join();
}

TEST_P(SecuredCoordinatorTest, WhoWasTurnedAwayIsMentionedWhereARankIsMissing) {
  Start(2);
  zero_ = ConnectAs(0);
  RawPeer peer(coordinator_->address(), Secured('x', GetParam()));
  peer.Send(HelloOf(1, size_));
  EXPECT_THAT(peer.Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  zero_->Send(JoinOf(0));
  zero_->Send(GiveUp{});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const JoinFailed failed, zero_->ReceiveA<JoinFailed>());
  EXPECT_EQ(failed.status.message(),
            "the world did not form in time: rank 1 of 2 has not joined; the coordinator has turned away 1 (does not "
            "have the secret)");
}

// Who has listened to a rank gains nothing by saying the same.
TEST_P(SecuredCoordinatorTest, ACaptureIsWorthNothing) {
  Start(2);
  zero_ = ConnectAs(0);
  std::string captured[2];
  {
    Channel channel(Purpose::kControl, Channel::Side::kConnects, credentials());
    const Outsider rank(coordinator_->address());
    captured[0] = channel.Start();
    ASSERT_TRUE(rank.Send(captured[0]));
    std::string plain;
    while (!channel.ready()) {
      const std::string piece = rank.Read(channel.wanted());
      ASSERT_NE(piece, "");
      ASSERT_THAT(channel.Receive(piece, &plain, &captured[1]), IsOk());
    }
    // Nobody has told the coordinator of this one: rank 1 has not come.
    Hello hello = HelloOf(1, size_);
    hello.job_id = "other";
    channel.Send(Encode(hello), &captured[1]);
    ASSERT_TRUE(rank.Send(captured[1]));
    ASSERT_NE(rank.Read(1), "");
  }
  EXPECT_EQ(refused(Refusal::kOtherWorld), 1u);
  const uint64_t before = coordinator_->refusals().total();
  const Outsider replays(coordinator_->address());
  ASSERT_TRUE(replays.Send(captured[0]));
  ASSERT_NE(replays.Read(kPreambleBytes + 5), "");
  ASSERT_TRUE(replays.Send(captured[1]));
  replays.ReadToTheEnd();
  EXPECT_EQ(refused(Refusal::kOtherWorld), 1u);
  EXPECT_EQ(coordinator_->refusals().total(), before + 1);
  one_ = ConnectAs(1);
  Join();
}

// The log does not blame the rank for it.
TEST_P(SecuredCoordinatorTest, AHelloThatWasAlteredOnItsWayIsCalledThat) {
  Start(2);
  LogLines log;
  const uint64_t before = refused(Refusal::kBroken);
  {
    Channel channel(Purpose::kControl, Channel::Side::kConnects, credentials());
    const Outsider rank(coordinator_->address());
    ASSERT_TRUE(rank.Send(channel.Start()));
    std::string plain, to_send;
    while (!channel.ready()) {
      const std::string piece = rank.Read(channel.wanted());
      ASSERT_NE(piece, "");
      ASSERT_THAT(channel.Receive(piece, &plain, &to_send), IsOk());
    }
    channel.Send(Encode(HelloOf(1, size_)), &to_send);
    to_send.back() ^= 1;
    ASSERT_TRUE(rank.Send(to_send));
    rank.ReadToTheEnd();
  }
  EXPECT_EQ(refused(Refusal::kBroken), before + 1);
  EXPECT_THAT(log.lines(), Contains(AllOf(HasSubstr("turned away"), HasSubstr("a record was altered"))));
  EXPECT_THAT(log.lines(), Each(Not(HasSubstr("something else than a hello"))));
  zero_ = ConnectAs(0);
  one_ = ConnectAs(1);
  Join();
}

TEST_P(SecuredCoordinatorTest, RecordsThatAreNotOfTheRankEndItsConnection) {
  Form();
  one_->SendBytes(std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x'));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const FailureMessage failure, zero_->ReceiveA<FailureMessage>());
  EXPECT_EQ(failure.channel, kAllChannels);
  EXPECT_THAT(failure.status, StatusIs(absl::StatusCode::kAborted,
                                       "rank 1 (host h, pid 71) is cut off: its control connection was tampered with: "
                                       "what arrived there is not what was sent"));
  // It learns of it.
  EXPECT_THAT(one_->Receive(), StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_EQ(one_->input(), Connection::Input::kTampered);
}

}  // namespace
}  // namespace lockstep::control
