// TCP as a Transport (tests/transport_conformance.h), over IPv4 and IPv6; and what is its own: unauthenticated peers at the
// listener, hellos that do not fit, connections that break, and many of them. connections_test.cc has how they are made,
// peer_death_test.cc processes that die.

#include "transport/tcp/tcp_transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/log_testing.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/link/link.h"
#include "transport/net/socket.h"
#include "transport/tcp/fake_kernel_tls.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/kernel_tls.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

TransportFactory Factory(const std::string& name, const std::string& bind_address, size_t staging_bytes,
                         int sockets = 1, bool zero_copy = false, SecurityLevel level = SecurityLevel::kNone,
                         KernelTls* kernel_tls = nullptr) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            const SocketAddress bind = TestAddress(bind_address);
            if (const auto probe = Listen(bind); !probe.ok()) {
              return absl::UnavailableError(probe.status().message());
            }
            LOCKSTEP_ASSIGN_OR_RETURN(TcpTransports ranks, CreateTcpWorld(size, [&](TcpTransportOptions* options) {
                                        options->bind_address = bind;
                                        options->staging_bytes = staging_bytes;
                                        options->sockets = sockets;
                                        options->tuning.zero_copy = zero_copy;
                                        options->credentials = TestCredentials(level);
                                        options->records_on_one_host = true;
                                        options->kernel_tls = kernel_tls;
                                      }));
            return AsTransports(std::move(ranks));
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportConformance,
    testing::Values(Factory("IPv4", "127.0.0.1:0", 256 << 10),
                    // So small that most elements arrive in parts.
                    Factory("IPv4SmallStaging", "127.0.0.1:0", 64),
                    Factory("IPv4ThreeSockets", "127.0.0.1:0", 256 << 10, 3), Factory("IPv6", "[::1]:0", 256 << 10),
                    Factory("IPv4ZeroCopy", "127.0.0.1:0", 256 << 10, 1, true),
                    Factory("IPv6ZeroCopy", "[::1]:0", 256 << 10, 1, true),
                    Factory("Authenticated", "127.0.0.1:0", 256 << 10, 1, true, SecurityLevel::kAuthenticate),
                    Factory("AuthenticatedThreeSockets", "127.0.0.1:0", 64, 3, false, SecurityLevel::kAuthenticate),
                    Factory("Encrypted", "[::1]:0", 256 << 10, 1, false, SecurityLevel::kEncrypt),
                    Factory("EncryptedThreeSockets", "127.0.0.1:0", 256 << 10, 3, false, SecurityLevel::kEncrypt),
                    Factory("KernelTls", "127.0.0.1:0", 256 << 10, 1, false, SecurityLevel::kEncrypt,
                            FakeKernelTls::OfAll())),
    TransportFactoryName);

using TcpTransportTest = TcpFixture;

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
  for (int sockets : {0, -1, 65}) {
    EXPECT_THAT(create([sockets](auto* o) { o->sockets = sockets; }),
                StatusIs(Code::kInvalidArgument, HasSubstr(" sockets a connection, not 1 to 64")));
  }
  EXPECT_THAT(create([](auto* o) { o->tuning.receive_buffer_bytes = -1; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("a socket buffer of -1 bytes")));
  EXPECT_THAT(create([](auto* o) { o->tuning.congestion_control = "nonsense"; }),
              StatusIs(Code::kNotFound, HasSubstr("congestion control 'nonsense' (this system allows: ")));
  EXPECT_THAT(create([](auto* o) { o->tuning.congestion_control = "reno"; }), IsOk());
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
TEST_F(TcpTransportTest, UnauthenticatedPeersReachNoRankAndAreLoggedOnceASecond) {
  Create(2, [](TcpTransportOptions* options) {
    options->handshake_timeout = std::chrono::milliseconds(1000);
    options->pending_connections_max = 64;
  });
  LogLines log;
  const auto begin = Deadline::Clock::now();
  const std::string hello = EncodeHello(AHello(0));
  std::vector<UniqueFd> outsiders;
  for (int i = 0; i < 10; ++i) {
    outsiders.push_back(Babble(1, "GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
    outsiders.push_back(Babble(1, std::string(100'000, '\0')));
    outsiders.push_back(Babble(1, hello));  // as version 2 began
    outsiders.push_back(Babble(1, "LKSP"));
    outsiders.push_back(Say(1, hello.substr(0, hello.size() - 1)).socket);
    outsiders.push_back(Babble(1, ""));
    Babble(1, "LKSP");  // and gone again
    ExpectExchange(0, 1, i);
  }
  for (const UniqueFd& peer : outsiders) EXPECT_TRUE(Closed(peer.get()));
  ExpectExchange(0, 1, 100);
  const Refusals& refusals = *rank(1)->refusals();
  EXPECT_EQ(refusals.count(Refusal::kNotOurs), 20);
  EXPECT_EQ(refusals.count(Refusal::kOldProtocol), 10);
  EXPECT_EQ(refusals.count(Refusal::kSilent), 30);
  EXPECT_EQ(refusals.count(Refusal::kGaveUp), 10);
  EXPECT_EQ(refusals.total(), 70) << refusals.Describe();
  const size_t lines = log.lines().size();
  EXPECT_GE(lines, 3);
  EXPECT_LE(lines, 3 * (1 + (Deadline::Clock::now() - begin) / std::chrono::seconds(1)))
      << testing::PrintToString(log.lines());
  EXPECT_THAT(log.lines()[0], HasSubstr("tcp listener " + rank(1)->address().ToString() + ": turned away 127.0.0.1:"));
}

// Else silent connections could fill the kernel's queue of a rank that computes, and a peer's first one would find no place there.
TEST_F(TcpTransportTest, WhoConnectsIsSeenToWhileARankDoesNothing) {
  Create(2, [](TcpTransportOptions* options) {
    options->pending_connections_max = 4;
    options->handshake_timeout = std::chrono::milliseconds(30);
  });
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Babble(1, ""));
  char byte;
  for (const UniqueFd& socket : silent) {
    EXPECT_THAT(ReceiveAll(socket.get(), &byte, 1, TestDeadline()), StatusIs(Code::kUnavailable, testing::_));
  }
  EXPECT_EQ(rank(1)->refusals()->total(), 100);
  ExpectExchange(0, 1, 1);
}

TEST_F(TcpTransportTest, AFloodCostsABoundedNumberOfConnectionsAndNobodyElse) {
  Create(2, [](TcpTransportOptions* options) { options->pending_connections_max = 16; });
  LogLines log;
  std::vector<UniqueFd> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(Babble(1, ""));
  ExpectExchange(0, 1, 1);
  const auto open = [&flood] {
    return std::count_if(flood.begin(), flood.end(), [](const UniqueFd& socket) {
      char byte;
      return absl::IsDeadlineExceeded(ReceiveAll(socket.get(), &byte, 1, Deadline::Now()));
    });
  };
  ASSERT_TRUE(DriveAll([&] { return open() <= 16; }));
  EXPECT_GE(open(), 15) << "the latest are still given their time, but for one that made way for a rank";
  EXPECT_THAT(log.lines(), testing::Contains(HasSubstr("too many connections")));
  EXPECT_GE(rank(1)->refusals()->count(Refusal::kCrowded), 200 - 16);
}

TEST_F(TcpTransportTest, AHelloMayArriveByteByByte) {
  Create(2);
  const TestPeer slow = Say(1, "");
  for (const char byte : EncodeHello(AHello(3))) {
    ASSERT_THAT(SendAll(slow.get(), &byte, 1, TestDeadline()), IsOk());
    rank(1)->Progress();
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(slow));
  EXPECT_EQ(answer.verdict, Verdict::kAccepted);
}

TEST_F(TcpTransportTest, HellosThatDoNotFitAreAnswered) {
  Create(2);
  LogLines log;
  Hello other_job = AHello(0);
  other_job.job_id = "other";
  std::string other_version = EncodeHello(AHello(0)), too_long = other_version, malformed = other_version;
  other_version[4] = 1;
  too_long[11] = '\x7f';
  malformed[kHelloPrefixBytes + 32] = 1;
  const std::pair<Verdict, std::string> cases[] = {{Verdict::kOtherJob, EncodeHello(other_job)},
                                                   {Verdict::kOtherVersion, other_version},
                                                   {Verdict::kMalformed, too_long},
                                                   {Verdict::kMalformed, malformed}};
  for (const auto& [verdict, hello] : cases) {
    const TestPeer peer = Say(1, hello);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(peer));
    EXPECT_EQ(answer.verdict, verdict);
    EXPECT_EQ(answer.version, kTcpProtocolVersion);
    EXPECT_THAT(ReadAnswer(peer), StatusIs(Code::kUnavailable, testing::_)) << "closed after it";
  }
  ExpectExchange(0, 1, 0);
}

TEST_F(TcpTransportTest, AMessageThatWasNotExpectedLeavesTheOtherDirection) {
  Create(2);
  ExpectExchange(0, 1, 0);
  TestOperation send, receive, back_send, back_receive;
  std::vector<unsigned char> target(1), back_target(1);
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Send(Rank(1), 0, TestEnvelope(2), "x", 1, &send);
  ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kFailedPrecondition, HasSubstr("another envelope")));
  rank(0)->Receive(Rank(1), 0, TestEnvelope(3), CopySink(&back_target), &back_receive);
  rank(1)->Send(Rank(0), 0, TestEnvelope(3), "y", 1, &back_send);
  ASSERT_TRUE(DriveAll([&] { return back_receive.done() && back_send.done(); }));
  EXPECT_THAT(back_receive.status, IsOk());
  EXPECT_EQ(back_target[0], 'y');
}

// Closing a socket on which something lies unread resets the connection, and drops what is still on its way.
TEST_F(TcpTransportTest, WhatWasSentArrivesThoughItsSenderLeftAMessageUnread) {
  Create(2);
  ExpectExchange(0, 1, 0);
  TestOperation unread;
  rank(1)->Send(Rank(0), 0, TestEnvelope(1), "x", 1, &unread);
  ASSERT_TRUE(unread.done());
  const std::vector<unsigned char> data = TestPayload(64 << 10, 1);
  std::deque<TestOperation> sends;
  do {
    rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &sends.emplace_back());
  } while (sends.back().done());
  ranks_[0] = nullptr;
  ASSERT_GT(sends.size(), 2);
  for (size_t i = 0; i + 1 < sends.size(); ++i) {
    ASSERT_THAT(sends[i].status, IsOk());
    std::vector<unsigned char> target(data.size());
    TestOperation receive;
    rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
    ASSERT_TRUE(Await(rank(1), [&] { return receive.done(); }));
    ASSERT_THAT(receive.status, IsOk()) << "message " << i << " of " << sends.size() - 1;
    EXPECT_EQ(target, data);
  }
}

TEST_F(TcpTransportTest, WhatIsNoMessageAfterAGoodHandshakeIsDataLoss) {
  Create(2);
  const TestPeer peer = Say(1, EncodeHello(AHello(0)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(peer));
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
  TestPeer peer = Say(1, EncodeHello(AHello(0)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(peer));
  ASSERT_EQ(answer.verdict, Verdict::kAccepted);
  std::vector<unsigned char> target(8);
  TestOperation receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  const linger reset = {1, 0};
  ASSERT_EQ(setsockopt(peer.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  peer.socket.reset();
  ASSERT_TRUE(Await(rank(1), [&] { return receive.done(); }));
  EXPECT_THAT(receive.status,
              StatusIs(Code::kUnavailable, "recv from rank 0 over tcp " + rank(0)->address().ToString() +
                                               ": connection lost: Connection reset by peer"));
}

TEST_F(TcpTransportTest, APeerThatClosedWhileNothingWasSentFailsTheNextSend) {
  Create(2);
  ExpectExchange(0, 1, 0);
  ranks_[1] = nullptr;
  // The close is an event: the wait ends with it.
  rank(0)->WaitForEvent(TestDeadline());
  rank(0)->Progress();
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(send.done());
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, testing::EndsWith(": connection closed by peer")));
}

TEST_F(TcpTransportTest, FailsInAForkedChildAndWorksInTheParent) {
  Create(2);
  ExpectUselessAfterFork();
}

// More connections than are tried one by one, with messages that need many rounds, both ways; every rank a thread that
// sleeps when nothing moves.
TEST_F(TcpTransportTest, ManyConnectionsAreServedByEvents) {
  constexpr int kChannels = 40;
  constexpr size_t kBytes = 300'000;
  Create(2);
  RunRanks(ranks_, [&](Transport* self) {
    const Rank peer(1 - self->rank().value());
    const std::vector<unsigned char> data = TestPayload(kBytes, 3);
    std::deque<TestOperation> operations;
    std::vector<std::vector<unsigned char>> targets(kChannels, std::vector<unsigned char>(kBytes));
    for (int channel = 0; channel < kChannels; ++channel) {
      self->Receive(peer, channel, TestEnvelope(1), CopySink(&targets[channel]), &operations.emplace_back());
      self->Send(peer, channel, TestEnvelope(1), data.data(), kBytes, &operations.emplace_back());
    }
    Await(self, [&] { return AllDone(operations); });
    for (const auto& target : targets) EXPECT_TRUE(target == data);
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
  });
}

}  // namespace
}  // namespace lockstep
