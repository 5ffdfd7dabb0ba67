// Who is in the middle of a connection, and who has no place in it: whatever they do, no wrong byte is taken for right.

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fork.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/transport_testing.h"
#include "transport/link/record_stream.h"
#include "transport/net/little_endian.h"
#include "transport/tcp/fake_kernel_tls.h"
#include "transport/tcp/tcp_testing.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

// What a relay does with the second of the next three records.
enum class Attack { kNone, kFlip, kDrop, kRepeat, kSwap, kCut };

// Between whoever connects to it and a listener. Passes on all bytes, and plays its trick once, on the records of who connected.
class Relay {
 public:
  explicit Relay(const SocketAddress& target) : target_(target), listener_(*Listen(TestAddress())) {}

  SocketAddress address() const { return *LocalAddress(listener_.get()); }
  // What who connected has said so far.
  const std::string& captured() const { return captured_; }

  // From a moment on in which nothing is under way.
  void Play(Attack attack) { attack_ = attack; }

  void Pump() {
    if (!client_.valid()) {
      client_ = *Accept(listener_.get(), nullptr);
      if (!client_.valid()) return;
      server_ = *Connect(target_, TestDeadline());
    }
    Take(client_, &from_client_);
    if (attack_ != Attack::kNone) PlayTrick();
    if (attack_ == Attack::kNone && !cut_) to_server_.append(std::exchange(from_client_, ""));
    Give(server_, &to_server_);
    Take(server_, &to_client_);
    Give(client_, &to_client_);
    if (cut_ && to_server_.empty()) {
      server_.reset();
      client_.reset();
    }
  }

 private:
  void Take(const UniqueFd& from, std::string* bytes) {
    char piece[64 << 10];
    ssize_t read;
    while (from.valid() && (read = recv(from.get(), piece, sizeof(piece), MSG_DONTWAIT)) > 0) {
      bytes->append(piece, read);
      if (&from == &client_) captured_.append(piece, read);
    }
  }
  static void Give(const UniqueFd& to, std::string* bytes) {
    ssize_t sent;
    while (to.valid() && !bytes->empty() &&
           (sent = send(to.get(), bytes->data(), bytes->size(), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) {
      bytes->erase(0, sent);
    }
  }
  void PlayTrick() {
    std::vector<std::string> records;
    size_t at = 0;
    for (int i = 0; i < 3; ++i) {
      if (from_client_.size() < at + kRecordHeaderBytes) return;
      const size_t bytes = kRecordOverheadBytes +
                           LoadLittleEndian<uint32_t>(reinterpret_cast<const unsigned char*>(from_client_.data()) + at);
      if (from_client_.size() < at + bytes) return;
      records.push_back(from_client_.substr(at, bytes));
      at += bytes;
    }
    from_client_.erase(0, at);
    switch (std::exchange(attack_, Attack::kNone)) {
      case Attack::kNone:
        break;
      case Attack::kFlip:
        records[1][1000] ^= 1;
        break;
      case Attack::kDrop:
        records.erase(records.begin() + 1);
        break;
      case Attack::kRepeat:
        records.insert(records.begin() + 1, records[1]);
        break;
      case Attack::kSwap:
        std::swap(records[1], records[2]);
        break;
      case Attack::kCut:
        records.resize(2);
        records[1].resize(1000);
        cut_ = true;
        break;
    }
    for (const std::string& record : records) to_server_ += record;
  }

  const SocketAddress target_;
  const UniqueFd listener_;
  UniqueFd client_, server_;
  std::string captured_, from_client_, to_server_, to_client_;
  Attack attack_ = Attack::kNone;
  bool cut_ = false;
};

class TamperingTest : public TcpFixture, public testing::WithParamInterface<SecurityLevel> {
 protected:
  TamperingTest() { no_kernel_tls_.faults.attach = ENOENT; }

  void CreateSecured(const std::function<void(TcpTransportOptions*)>& change = [](TcpTransportOptions*) {}) {
    Create(2, [&](TcpTransportOptions* options) {
      options->credentials = TestCredentials(GetParam());
      options->records_on_one_host = true;
      options->kernel_tls = &no_kernel_tls_;  // the relay knows records of our own
      change(options);
    });
  }

  // A message from rank 0 to rank 1 through the relay: how its receive ended.
  absl::Status Pass(Relay* relay, const std::vector<unsigned char>& data, std::vector<unsigned char>* target) {
    TestOperation send, receive;
    rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(target), &receive);
    rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
    DriveAll([&] {
      relay->Pump();
      return receive.done() && (send.done() || !receive.status.ok());
    });
    if (!send.done()) {
      rank(0)->Abort(absl::AbortedError("the test is over"));
      EXPECT_TRUE(send.done());
    }
    return receive.status;
  }

 private:
  FakeKernelTls no_kernel_tls_;
};

INSTANTIATE_TEST_SUITE_P(Levels, TamperingTest, testing::Values(SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt),
                         [](const auto& info) { return Name(info.param); });

TEST_P(TamperingTest, ARelayChangesNothingUnnoticed) {
  struct Case {
    Attack attack;
    const char* defect;
    Code code = Code::kDataLoss;
  };
  const Case cases[] = {
      {Attack::kFlip, "record 3 was altered, or is not from this connection"},
      {Attack::kDrop, "record 4 came where 3 was due: lost, repeated or out of order"},
      {Attack::kRepeat, "record 3 came where 4 was due: lost, repeated or out of order"},
      {Attack::kSwap, "record 4 came where 3 was due: lost, repeated or out of order"},
      // As when the peer's process dies.
      {Attack::kCut, "connection closed by peer: cut inside record 3", Code::kUnavailable},
  };
  for (const auto& [attack, defect, code] : cases) {
    SCOPED_TRACE(defect);
    CreateSecured();
    Relay relay(rank(1)->address());
    ASSERT_THAT(rank(0)->SetPeers({rank(0)->address(), relay.address()}), IsOk());
    const std::vector<unsigned char> data = TestPayload(300'000, 7);
    std::vector<unsigned char> target(100);
    for (int i = 0; i < 2; ++i) ASSERT_THAT(Pass(&relay, TestPayload(100, i), &target), IsOk());
    EXPECT_TRUE(target == TestPayload(100, 1));
    relay.Play(attack);
    target.assign(data.size(), 0);
    EXPECT_THAT(
        Pass(&relay, data, &target),
        StatusIs(code, "recv from rank 0 over tcp " + rank(0)->address().ToString() + ": " + std::string(defect)));
    // Also later: the connection stays lost.
    EXPECT_THAT(Pass(&relay, data, &target), StatusIs(code));
  }
}

TEST_P(TamperingTest, AReplayedConnectionIsTurnedAway) {
  CreateSecured();
  Relay relay(rank(1)->address());
  ASSERT_THAT(rank(0)->SetPeers({rank(0)->address(), relay.address()}), IsOk());
  std::vector<unsigned char> target(100);
  ASSERT_THAT(Pass(&relay, TestPayload(100, 1), &target), IsOk());
  ASSERT_GT(relay.captured().size(), 300);
  const UniqueFd replay = Babble(1, relay.captured());
  EXPECT_TRUE(Closed(replay.get()));
  EXPECT_EQ(rank(1)->refusals()->total(), 1) << rank(1)->refusals()->Describe();
  EXPECT_EQ(rank(1)->refusals()->count(Refusal::kOtherWorld), 0);
  ASSERT_THAT(Pass(&relay, TestPayload(100, 2), &target), IsOk());
  EXPECT_TRUE(target == TestPayload(100, 2));
}

TEST_P(TamperingTest, UnauthenticatedPeersOfEveryKindAreTurnedAwayAndCounted) {
  CreateSecured([](TcpTransportOptions* options) {
    options->handshake_timeout = std::chrono::milliseconds(300);
    options->pending_connections_max = 16;
  });
  ExpectExchange(0, 1, 0);
  const Refusals& refusals = *rank(1)->refusals();
  EXPECT_TRUE(Closed(Babble(1, "").get()));
  EXPECT_EQ(refusals.count(Refusal::kSilent), 1);
  EXPECT_TRUE(Closed(Babble(1, EncodeHello(AHello(0))).get()));
  EXPECT_EQ(refusals.count(Refusal::kOldProtocol), 1);
  EXPECT_TRUE(Closed(Babble(1, "\x16\x03\x01 a TLS client of the world's").get()));
  EXPECT_EQ(refusals.count(Refusal::kNotOurs), 1);
  // A connection of a rank's, up to its preamble.
  const std::string preamble = Channel(Purpose::kData, Channel::Side::kConnects, TestCredentials(GetParam())).Start();
  EXPECT_TRUE(Closed(Babble(1, preamble.substr(0, kPreambleBytes) + std::string(9000, 'x')).get()));
  EXPECT_EQ(refusals.count(Refusal::kBroken), 1);
  for (const Credentials& other : {TestCredentials(GetParam(), 'o'), Credentials()}) {
    Channel channel(Purpose::kData, Channel::Side::kConnects, other);
    EXPECT_TRUE(Closed(Babble(1, channel.Start()).get()));
  }
  EXPECT_EQ(refusals.count(Refusal::kNoSecret), 1);
  EXPECT_EQ(refusals.count(Refusal::kOtherLevel), 1);
  EXPECT_EQ(refusals.total(), 6) << refusals.Describe();
  // Who has the secret, and is of another world.
  Hello hello = AHello(0);
  hello.world_id = 18;
  const TestPeer former = Say(1, EncodeHello(hello), TestCredentials(GetParam()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(former));
  EXPECT_EQ(answer.verdict, Verdict::kOtherWorld);
  EXPECT_EQ(refusals.count(Refusal::kOtherWorld), 1);
  std::deque<UniqueFd> flood;
  for (int i = 0; i < 1000; ++i) {
    flood.push_back(Babble(1, i % 2 == 0 ? "" : preamble));
    if (flood.size() > 100) flood.pop_front();
    if (i % 100 == 0) ExpectExchange(0, 1, 1 + i / 100);  // one that needs a connection
    rank(1)->Progress();
  }
  flood.clear();
  ExpectExchange(1, 0, 0);
  EXPECT_GT(refusals.count(Refusal::kCrowded), 0);
}

// However many stand in the queue, and however few places there are.
TEST_P(TamperingTest, WhoHasBegunWellIsHeardBeforeThoseThatComeBehindIt) {
  CreateSecured([](TcpTransportOptions* options) { options->pending_connections_max = 4; });
  const Refusals& refusals = *rank(1)->refusals();
  for (int round = 1; round <= 20; ++round) {
    std::vector<UniqueFd> crowd;
    for (int i = 0; i < 8; ++i) crowd.push_back(Babble(1, ""));
    UniqueFd peer = Babble(1, Channel(Purpose::kData, Channel::Side::kConnects, TestCredentials(GetParam())).Start());
    for (int i = 0; i < 16; ++i) crowd.push_back(Babble(1, ""));
    char answer[kPreambleBytes + 1];
    ASSERT_THAT(ReceiveAll(peer.get(), answer, sizeof(answer), TestDeadline()), IsOk()) << "round " << round;
    crowd.clear();
    peer.reset();
    const Deadline deadline = TestDeadline();
    while (refusals.total() < 25 * round && !deadline.passed()) std::this_thread::yield();
    ASSERT_EQ(refusals.total(), 25 * round);
  }
}

TEST_P(TamperingTest, ARankWithAnotherSecretIsTold) {
  Create(2, [&](TcpTransportOptions* options) {
    options->credentials = TestCredentials(GetParam(), options->rank == Rank(0) ? 'a' : 'b');
  });
  EXPECT_THAT(
      SendStatus(0, 1),
      StatusIs(
          Code::kPermissionDenied,
          HasSubstr(
              "send to rank 1 over tcp " + rank(1)->address().ToString() +
              ": shake hands: the listener does not have the secret: ours is from the test; all ranks need the same")));
  EXPECT_EQ(rank(1)->refusals()->count(Refusal::kNoSecret), 1);
}

TEST_P(TamperingTest, ARankThatWantsNoRecordsIsToldWhoDoes) {
  CreateSecured([](TcpTransportOptions* options) { options->records_on_one_host = options->rank == Rank(0); });
  const absl::Status sent = SendStatus(0, 1);
  if (GetParam() == SecurityLevel::kEncrypt) {
    EXPECT_THAT(sent, IsOk());
  } else {
    EXPECT_THAT(sent,
                StatusIs(Code::kFailedPrecondition,
                         HasSubstr("of ranks 0 and 1 rank 0 alone wants the messages of this connection in records")));
  }
}

// Out of descriptors: whoever has not shaken hands goes first.
TEST_P(TamperingTest, ARankGetsADescriptorThatAnUnauthenticatedPeerHas) {
  CreateSecured();
  const ptrdiff_t open = OpenDescriptors();
  std::vector<UniqueFd> outsiders;
  for (int i = 0; i < 4; ++i) outsiders.push_back(Babble(1, ""));
  ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() == open + 8; })) << "two each, one of them the listener's";
  const std::vector<unsigned char> data = TestPayload(1000, 1);
  std::vector<unsigned char> target(1000);
  TestOperation send, receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_THAT(Limit(RLIMIT_NOFILE, 256), IsOk());
  std::vector<UniqueFd> taken;
  for (int copy; (copy = dup(0)) >= 0;) taken.emplace_back(copy);
  EXPECT_EQ(errno, EMFILE);
  taken.pop_back();  // for the socket of rank 0
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  EXPECT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
  ASSERT_THAT(Limit(RLIMIT_NOFILE, before.rlim_cur), IsOk());
  EXPECT_THAT(receive.status, IsOk());
  EXPECT_TRUE(target == data);
  EXPECT_EQ(rank(1)->refusals()->count(Refusal::kCrowded), 1) << "no more than are needed";
}

}  // namespace
}  // namespace lockstep
