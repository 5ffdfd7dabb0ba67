// What is TCP's own: strangers at the listener, handshakes that do not fit, connecting, many connections.
// tests/transport_conformance.h has what every transport promises; peer_death_test.cc has processes that die.

#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/message_header.h"
#include "transport/socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

// Collects log lines while it lives.
class LogLines {
 public:
  LogLines() {
    SetLogSink([](void* lines, LogLevel, const char* line) { static_cast<LogLines*>(lines)->lines_.push_back(line); },
               this);
  }
  ~LogLines() { SetLogSink(nullptr, nullptr); }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

class TcpTransportTest : public testing::Test {
 protected:
  void Create(
      int size, const std::function<void(TcpTransportOptions*)>& change = [](TcpTransportOptions*) {}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, CreateTcpWorld(size, change));
    for (const auto& rank : ranks_) borrowed_.push_back(rank.get());
  }

  TcpTransport* rank(int index) { return ranks_[index].get(); }

  template <typename Done>
  bool DriveAll(Done done) {
    return Drive(borrowed_, done);
  }

  // A message from 0 to 1, to show that the world is well.
  void Exchange(ChannelId channel) {
    const std::vector<unsigned char> data = TestPayload(5000, channel);
    std::vector<unsigned char> target(data.size());
    TestOperation send, receive;
    rank(0)->Send(Rank(1), channel, TestEnvelope(1), data.data(), data.size(), &send);
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), CopySink(&target), &receive);
    ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
    EXPECT_THAT(send.status, IsOk());
    EXPECT_THAT(receive.status, IsOk());
    EXPECT_EQ(target, data);
  }

  // How a send from 0 to 1 ends.
  absl::Status SendStatus() {
    TestOperation send;
    rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
    DriveAll([&] { return send.done(); });
    return send.status;
  }

  // Somebody's connection to a rank, which has said `bytes`.
  UniqueFd Say(int to, absl::string_view bytes) {
    absl::StatusOr<UniqueFd> socket = Connect(rank(to)->address(), TestDeadline(), false);
    EXPECT_THAT(socket, IsOk());
    if (!socket.ok()) return UniqueFd();
    EXPECT_THAT(SendAll(socket->get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
    return *std::move(socket);
  }

  // What the ranks answer on a connection: a verdict, or why there is none. Drives them meanwhile.
  absl::StatusOr<Answer> ReadAnswer(int socket) {
    unsigned char bytes[kAnswerBytes];
    absl::Status read;
    DriveAll([&] {
      read = ReceiveAll(socket, bytes, sizeof(bytes), Deadline::Now());
      return !absl::IsDeadlineExceeded(read);
    });
    if (!read.ok()) return read;
    Answer answer;
    EXPECT_TRUE(DecodeAnswer(bytes, &answer));
    return answer;
  }

  // A hello that fits from rank 0 to rank 1.
  static Hello AHello(ChannelId channel) { return {"test", 17, Rank(0), Rank(1), channel, 1 << 20, ""}; }

  TcpTransports ranks_;
  std::vector<Transport*> borrowed_;
};

TEST_F(TcpTransportTest, CreationSaysWhatIsWrong) {
  const auto create = [](const std::function<void(TcpTransportOptions*)>& change) {
    TcpTransportOptions options = TestOptions(0, 2);
    change(&options);
    return TcpTransport::Create(options).status();
  };
  EXPECT_THAT(create([](auto* o) { o->size = 0; }), StatusIs(Code::kInvalidArgument, HasSubstr("world of 0")));
  EXPECT_THAT(create([](auto* o) { o->rank = Rank(2); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("rank 2 in a world of 2")));
  EXPECT_THAT(create([](auto* o) { o->job_id = std::string(1025, 'j'); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("1025 bytes")));
  EXPECT_THAT(create([](auto* o) { o->bind_address = SocketAddress(); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("no address")));
  EXPECT_THAT(create([](auto* o) { o->bind_address = TestAddress("192.0.2.1:0"); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("192.0.2.1")));
  EXPECT_THAT(create([](auto* o) { o->congestion_control = "nonsense"; }),
              StatusIs(Code::kNotFound, HasSubstr("congestion control 'nonsense' (this system allows: ")));
  EXPECT_THAT(create([](auto* o) { o->congestion_control = "reno"; }), IsOk());
}

TEST_F(TcpTransportTest, TheTableOfPeersIsNeededToSend) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto lonely, TcpTransport::Create(TestOptions(0, 2)));
  TestOperation send;
  lonely->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("SetPeers")));
  EXPECT_THAT(lonely->SetPeers({TestAddress()}), StatusIs(Code::kInvalidArgument, HasSubstr("1 addresses")));
  EXPECT_EQ(lonely->DescribePeer(Rank(1)), "tcp (its address is not known yet)");
}

TEST_F(TcpTransportTest, DescribesPeersByAddress) {
  Create(2);
  EXPECT_EQ(rank(0)->DescribePeer(Rank(1)), "tcp " + rank(1)->address().ToString());
}

// Garbage, half a handshake and silence, beside an exchange on each channel that opens connections of its own.
TEST_F(TcpTransportTest, StrangersReachNoRankAndAreLoggedOnceASecond) {
  Create(2, [](TcpTransportOptions* options) { options->handshake_timeout = std::chrono::milliseconds(50); });
  LogLines log;
  const std::string hello = EncodeHello(AHello(0));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 10; ++i) {
    strangers.push_back(Say(1, "GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
    strangers.push_back(Say(1, std::string(100'000, '\0')));
    strangers.push_back(Say(1, hello.substr(0, 5)));
    strangers.push_back(Say(1, hello.substr(0, hello.size() - 1)));
    strangers.push_back(Say(1, ""));
    Say(1, hello.substr(0, 20));  // and gone again
    Exchange(i);
  }
  for (const UniqueFd& stranger : strangers) {
    EXPECT_THAT(ReadAnswer(stranger.get()), StatusIs(Code::kUnavailable, testing::_)) << "closed, without an answer";
  }
  Exchange(100);
  EXPECT_GE(log.lines().size(), 1);
  EXPECT_LE(log.lines().size(), 4) << testing::PrintToString(log.lines());
  EXPECT_THAT(log.lines()[0], HasSubstr("connection from 127.0.0.1:"));
}

// The timer must end the wait: no event tells that somebody stays silent.
TEST_F(TcpTransportTest, SilenceIsDroppedWhileARankSleeps) {
  Create(2, [](TcpTransportOptions* options) { options->handshake_timeout = std::chrono::milliseconds(30); });
  const UniqueFd silent = Say(1, "");
  const Deadline deadline = TestDeadline();
  char byte;
  do {
    rank(1)->WaitForEvent(deadline);
    ASSERT_FALSE(deadline.passed());
    rank(1)->Progress();
  } while (!absl::IsUnavailable(ReceiveAll(silent.get(), &byte, 1, Deadline::Now())));
}

TEST_F(TcpTransportTest, AFloodCostsABoundedNumberOfConnectionsAndNobodyElse) {
  Create(2, [](TcpTransportOptions* options) { options->pending_connections_max = 16; });
  LogLines log;
  std::vector<UniqueFd> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(Say(1, ""));
  Exchange(1);
  const auto open = [&flood] {
    return std::count_if(flood.begin(), flood.end(), [](const UniqueFd& socket) {
      char byte;
      return absl::IsDeadlineExceeded(ReceiveAll(socket.get(), &byte, 1, Deadline::Now()));
    });
  };
  ASSERT_TRUE(DriveAll([&] { return open() <= 16; }));
  EXPECT_EQ(open(), 16) << "the latest are still given their time";
  EXPECT_THAT(log.lines(), testing::Contains(HasSubstr("more than 16 connections")));
}

TEST_F(TcpTransportTest, AHelloMayArriveByteByByte) {
  Create(2);
  const UniqueFd slow = Say(1, "");
  for (const char byte : EncodeHello(AHello(3))) {
    ASSERT_THAT(SendAll(slow.get(), &byte, 1, TestDeadline()), IsOk());
    rank(1)->Progress();
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(slow.get()));
  EXPECT_EQ(answer.verdict, Verdict::kAccepted);
}

TEST_F(TcpTransportTest, HellosThatDoNotFitAreAnswered) {
  Create(2);
  LogLines log;
  struct Case {
    Verdict verdict;
    std::string hello;
  };
  Hello other_job = AHello(0), other_world = AHello(0), other_rank = AHello(0), no_rank = AHello(0),
        other_chunk = AHello(0), authentic = AHello(0);
  other_job.job_id = "other";
  other_world.world_id = 18;
  other_rank.target = Rank(0);
  no_rank.source = Rank(2);
  other_chunk.chunk_bytes = 1;
  authentic.authentication = "please";
  std::string other_version = EncodeHello(AHello(0)), too_long = other_version, malformed = other_version;
  other_version[4] = 2;
  too_long[11] = '\x7f';
  malformed[kHelloPrefixBytes + 24] = 1;
  for (const Case& c :
       {Case{Verdict::kOtherJob, EncodeHello(other_job)}, Case{Verdict::kOtherWorld, EncodeHello(other_world)},
        Case{Verdict::kOtherRank, EncodeHello(other_rank)}, Case{Verdict::kNoSuchRank, EncodeHello(no_rank)},
        Case{Verdict::kOtherChunkSize, EncodeHello(other_chunk)},
        Case{Verdict::kNotAuthenticated, EncodeHello(authentic)}, Case{Verdict::kOtherVersion, other_version},
        Case{Verdict::kMalformed, too_long}, Case{Verdict::kMalformed, malformed}}) {
    const UniqueFd socket = Say(1, c.hello);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(socket.get()));
    EXPECT_EQ(answer.verdict, c.verdict);
    EXPECT_EQ(answer.version, kTcpProtocolVersion);
    EXPECT_THAT(ReadAnswer(socket.get()), StatusIs(Code::kUnavailable, testing::_)) << "closed after it";
  }
  Exchange(0);
}

TEST_F(TcpTransportTest, ASecondConnectionForARankAndChannelIsTurnedAway) {
  Create(2);
  LogLines log;
  Exchange(5);
  const UniqueFd second = Say(1, EncodeHello(AHello(5)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(second.get()));
  EXPECT_EQ(answer.verdict, Verdict::kDuplicate);
  EXPECT_THAT(log.lines(), testing::Contains(HasSubstr("a second connection from rank 0 on channel 5")));
  Exchange(5);
}

TEST_F(TcpTransportTest, TwoProcessesThatClaimOneRankAreTold) {
  Create(2);
  LogLines log;
  Exchange(0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto usurper, TcpTransport::Create(TestOptions(0, 2)));
  ASSERT_THAT(usurper->SetPeers({usurper->address(), rank(1)->address()}), IsOk());
  TestOperation send;
  usurper->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  borrowed_.push_back(usurper.get());
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("claimed by two processes")));
  EXPECT_THAT(send.status.message(), HasSubstr("send to rank 1 over tcp " + rank(1)->address().ToString()));
}

TEST_F(TcpTransportTest, APeerWithOtherOptionsTellsTheSenderWhy) {
  struct Case {
    const char* message;
    std::function<void(TcpTransportOptions*)> change;
  };
  const Case cases[] = {
      {"peer belongs to another job than 'mine'", [](auto* o) { o->job_id = o->rank == Rank(0) ? "mine" : "yours"; }},
      {"peer belongs to another world of job 'test'", [](auto* o) { o->world_id = o->rank.value(); }},
      {"peer's chunk size is 1001 bytes, ours 1000", [](auto* o) { o->chunk_bytes = 1000 + o->rank.value(); }},
      {"peer is rank 2, not rank 1", [](auto* o) { o->rank = o->rank == Rank(1) ? Rank(2) : o->rank; }},
  };
  LogLines log;
  for (const Case& c : cases) {
    ranks_.clear();
    borrowed_.clear();
    Create(3, c.change);
    EXPECT_THAT(SendStatus(), StatusIs(Code::kFailedPrecondition, HasSubstr(c.message)));
  }
}

// A listener of the test's, which answers the first connection with `bytes`.
class FakeListener {
 public:
  FakeListener() : listener_(*Listen(TestAddress())) {}
  SocketAddress address() const { return *LocalAddress(listener_.get()); }
  // Whether somebody has connected, and was answered.
  bool Serve(absl::string_view bytes) {
    if (connection_.valid()) return true;
    connection_ = *Accept(listener_.get(), nullptr);
    if (!connection_.valid()) return false;
    EXPECT_THAT(SendAll(connection_.get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
    return true;
  }

 private:
  UniqueFd listener_;
  UniqueFd connection_;
};

TEST_F(TcpTransportTest, ListenersOfAnotherVersionOrKindAreNamed) {
  unsigned char other_version[kAnswerBytes];
  EncodeAnswer({2, Verdict::kOtherVersion, 0}, other_version);
  const std::pair<std::string, const char*> cases[] = {
      {std::string(reinterpret_cast<char*>(other_version), kAnswerBytes), "peer speaks protocol version 2, we 1"},
      {"SSH-2.0-OpenSSH_9.2p1\r\n", "no Lockstep peer"},
  };
  for (const auto& c : cases) {
    FakeListener listener;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(TestOptions(0, 2)));
    ASSERT_THAT(sender->SetPeers({sender->address(), listener.address()}), IsOk());
    TestOperation send;
    sender->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
    ASSERT_TRUE(Drive({sender.get()}, [&] {
      listener.Serve(c.first);
      return send.done();
    }));
    EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr(c.second)));
    EXPECT_THAT(send.status.message(), HasSubstr("send to rank 1 over tcp " + listener.address().ToString()));
  }
}

TEST_F(TcpTransportTest, ARefusedConnectionIsRetriedUntilItsTimeout) {
  Create(2, [](TcpTransportOptions* options) { options->connect_timeout = std::chrono::milliseconds(60); });
  const std::string address = rank(1)->address().ToString();
  ranks_[1] = nullptr;
  TestOperation send, later;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  EXPECT_FALSE(send.done());
  ASSERT_TRUE(Await(rank(0), [&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, HasSubstr("send to rank 1 over tcp " + address)));
  EXPECT_THAT(send.status.message(), HasSubstr("Connection refused ("));
  EXPECT_THAT(send.status.message(), HasSubstr(" attempts in 60 ms)"));
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &later);
  EXPECT_EQ(later.status, send.status);
}

TEST_F(TcpTransportTest, APeerThatDiesBeforeItAnswersIsNotTriedUntilTheTimeout) {
  auto listener = std::make_unique<FakeListener>();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(TestOptions(0, 2)));
  ASSERT_THAT(sender->SetPeers({sender->address(), listener->address()}), IsOk());
  TestOperation send;
  sender->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(Drive({sender.get()}, [&] { return listener->Serve(""); }));
  listener = nullptr;
  const auto died = Deadline::Clock::now();
  ASSERT_TRUE(Await(sender.get(), [&] { return send.done(); }));
  EXPECT_LT(Deadline::Clock::now() - died, TestOptions(0, 2).connect_timeout / 2);
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, HasSubstr("Connection refused")));
}

TEST_F(TcpTransportTest, AListenerMayStartLater) {
  UniqueFd reserved = *Listen(TestAddress());
  const SocketAddress address = *LocalAddress(reserved.get());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(TestOptions(0, 2)));
  ASSERT_THAT(sender->SetPeers({sender->address(), address}), IsOk());
  reserved.reset();
  TestOperation send, receive;
  std::vector<unsigned char> target(1);
  sender->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  for (int i = 0; i < 5; ++i) {
    if (!sender->Progress()) sender->WaitForEvent(Deadline::AfterMs(10));
  }
  EXPECT_FALSE(send.done());
  TcpTransportOptions options = TestOptions(1, 2);
  options.bind_address = address;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto receiver, TcpTransport::Create(options));
  receiver->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  ASSERT_TRUE(Drive({sender.get(), receiver.get()}, [&] { return send.done() && receive.done(); }));
  EXPECT_THAT(send.status, IsOk());
  EXPECT_THAT(receive.status, IsOk());
}

TEST_F(TcpTransportTest, WhatIsNoMessageAfterAGoodHandshakeIsDataLoss) {
  Create(2);
  const UniqueFd peer = Say(1, EncodeHello(AHello(0)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(peer.get()));
  ASSERT_EQ(answer.verdict, Verdict::kAccepted);
  const std::string garbage(kMessageHeaderBytes, 'x');
  ASSERT_THAT(SendAll(peer.get(), garbage.data(), garbage.size(), TestDeadline()), IsOk());
  std::vector<unsigned char> target(8);
  TestOperation receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  ASSERT_TRUE(Await(rank(1), [&] { return receive.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kDataLoss, HasSubstr("recv from rank 0")));
}

TEST_F(TcpTransportTest, AResetIsToldByItsErrno) {
  Create(2);
  UniqueFd peer = Say(1, EncodeHello(AHello(0)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(peer.get()));
  ASSERT_EQ(answer.verdict, Verdict::kAccepted);
  std::vector<unsigned char> target(8);
  TestOperation receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  const linger reset = {1, 0};
  ASSERT_EQ(setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  peer.reset();
  ASSERT_TRUE(Await(rank(1), [&] { return receive.done(); }));
  EXPECT_THAT(receive.status,
              StatusIs(Code::kUnavailable, "recv from rank 0 over tcp " + rank(0)->address().ToString() +
                                               ": connection lost: Connection reset by peer"));
}

TEST_F(TcpTransportTest, APeerThatClosedWhileNothingWasSentFailsTheNextSend) {
  Create(2);
  Exchange(0);
  ranks_[1] = nullptr;
  // The close is an event: the wait ends with it.
  rank(0)->WaitForEvent(TestDeadline());
  rank(0)->Progress();
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(send.done());
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, testing::EndsWith(": connection closed by peer")));
}

// More connections than are tried one by one, with messages that need many rounds, both ways; every rank a thread that
// sleeps when nothing moves.
TEST_F(TcpTransportTest, ManyConnectionsAreServedByEvents) {
  constexpr int kChannels = 40;
  constexpr size_t kBytes = 300'000;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(TcpTransports ranks, CreateTcpWorld(2));
  Transports transports;
  for (auto& rank : ranks) transports.push_back(std::move(rank));
  RunRanks(transports, [&](Transport* self) {
    const Rank peer(1 - self->rank().value());
    const std::vector<unsigned char> data = TestPayload(kBytes, 3);
    std::deque<TestOperation> operations;
    std::vector<std::vector<unsigned char>> targets(kChannels, std::vector<unsigned char>(kBytes));
    for (int channel = 0; channel < kChannels; ++channel) {
      self->Receive(peer, channel, TestEnvelope(1), CopySink(&targets[channel]), &operations.emplace_back());
      self->Send(peer, channel, TestEnvelope(1), data.data(), kBytes, &operations.emplace_back());
    }
    Await(self, [&] { return std::all_of(operations.begin(), operations.end(), [](auto& o) { return o.done(); }); });
    for (const auto& target : targets) EXPECT_TRUE(target == data);
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
  });
}

}  // namespace
}  // namespace lockstep
