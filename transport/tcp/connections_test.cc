// How connections are made: whoever begins, whatever listens, and what each side is told when there is to be none.

#include "transport/tcp/connections.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/log_testing.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/link/link.h"
#include "transport/net/socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// An error has this if the connect timeout ended the attempts.
constexpr char kTimeoutEndedIt[] = "attempts in ";

using ConnectionsTest = TcpFixture;

TEST_F(ConnectionsTest, ASecondConnectionForARankAndChannelIsTurnedAway) {
  Create(2);
  LogLines log;
  ExpectExchange(0, 1, 5);
  const TestPeer second = Say(1, EncodeHello(AHello(5)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(second));
  EXPECT_EQ(answer.verdict, Verdict::kDuplicate);
  EXPECT_THAT(log.lines(),
              testing::Contains(HasSubstr("rank 1: a connection was turned away: it says that it is rank 0, as which "
                                          "another process is connected on channel 5 already")));
  ExpectExchange(0, 1, 5);
}

TEST_F(ConnectionsTest, TwoProcessesThatClaimOneRankAreTold) {
  Create(2);
  LogLines log;
  ExpectExchange(0, 1, 0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto usurper, TcpTransport::Create(TestOptions(0, 2)));
  ASSERT_THAT(usurper->SetPeers({usurper->address(), rank(1)->address()}), IsOk());
  TestOperation send;
  usurper->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ranks_.push_back(std::move(usurper));
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("claimed by two processes")));
  EXPECT_THAT(send.status.message(), HasSubstr("send to rank 1 over tcp " + rank(1)->address().ToString()));
}

TEST_F(ConnectionsTest, APeerWithOtherOptionsTellsTheSenderWhy) {
  struct Case {
    const char* message;
    const char* refuser;  // as it logs it
    std::function<void(TcpTransportOptions*)> change;
  };
  const Case cases[] = {
      {"peer belongs to another job than 'mine'", "it says that it is rank 0 of another job",
       [](auto* o) { o->job_id = o->rank == Rank(0) ? "mine" : "yours"; }},
      {"peer belongs to another world of job 'test'", "it says that it is rank 0 of another world of this job",
       [](auto* o) { o->world_id = o->rank.value(); }},
      {"peer's chunk size is 1001 bytes, ours 1000", "rank 0 has a chunk size of 1000 bytes, we 1001",
       [](auto* o) { o->chunk_bytes = 1000 + o->rank.value(); }},
      {"peer uses 3 sockets a connection, we 2", "rank 0 uses 2 sockets a connection, we 3",
       [](auto* o) { o->sockets = 2 + o->rank.value(); }},
      {"peer is rank 2, not rank 1", "it looks for rank 1, this is rank 2",
       [](auto* o) { o->rank = o->rank == Rank(1) ? Rank(2) : o->rank; }},
  };
  for (const Case& c : cases) {
    LogLines log;
    Create(3, c.change);
    EXPECT_THAT(SendStatus(0, 1), StatusIs(Code::kFailedPrecondition, HasSubstr(c.message)));
    EXPECT_THAT(log.lines(), testing::Contains(testing::ContainsRegex(
                                 absl::StrCat(": turned away [^ ]*: it has no place in this world: ", c.refuser))));
  }
}

TEST_F(ConnectionsTest, ListenersOfAnotherVersionOrKindAreNamed) {
  struct Case {
    std::string said;
    bool with_channel;
    Code code;
    const char* message;
  };
  const Case cases[] = {
      {Encoded({4, Verdict::kOtherVersion, 0}), true, Code::kFailedPrecondition,
       "peer speaks protocol version 4, we 3"},
      {"what is this?!?!", true, Code::kFailedPrecondition, "no Lockstep peer"},
      {"SSH-2.0-OpenSSH_9.2p1\r\n", false, Code::kPermissionDenied, "the listener does not speak Lockstep's protocol"},
      {Encoded({2, Verdict::kOtherVersion, 0}), false, Code::kPermissionDenied,
       "the listener speaks an earlier version of Lockstep's protocol"},
  };
  for (const Case& c : cases) {
    FakeListener listener(c.with_channel);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(TestOptions(0, 2)));
    ASSERT_THAT(sender->SetPeers({sender->address(), listener.address()}), IsOk());
    TestOperation send;
    sender->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
    ASSERT_TRUE(Drive({sender.get()}, [&] {
      listener.Serve(c.said);
      return send.done();
    }));
    EXPECT_THAT(send.status, StatusIs(c.code, HasSubstr(c.message)));
    EXPECT_THAT(send.status.message(), HasSubstr("send to rank 1 over tcp " + listener.address().ToString()));
  }
}

TEST_F(ConnectionsTest, ARefusedConnectionFailsBothWaysAtOnce) {
  Create(2);
  const std::string address = rank(1)->address().ToString();
  ranks_[1] = nullptr;
  TestOperation send, receive, later;
  char byte;
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), {&byte, 1}, &receive);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(Await(rank(0), [&] { return send.done() && receive.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, HasSubstr("send to rank 1 over tcp " + address)));
  EXPECT_THAT(send.status.message(), AllOf(HasSubstr("Connection refused"), Not(HasSubstr(kTimeoutEndedIt))));
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, HasSubstr("recv from rank 1 over tcp " + address)));
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &later);
  EXPECT_EQ(later.status, send.status);
}

// It will make no connection, so whoever waits for a message has to ask.
TEST_F(ConnectionsTest, AReceiveFromAPeerThatHasGoneFails) {
  Create(2, [](TcpTransportOptions* options) { options->receive_patience = std::chrono::milliseconds(20); });
  ranks_[1] = nullptr;
  TestOperation receive;
  char byte;
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), {&byte, 1}, &receive);
  ASSERT_TRUE(Await(rank(0), [&] { return receive.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, HasSubstr("Connection refused")));
}

TEST_F(ConnectionsTest, AReceiverThatConnectsMakesTheOneConnectionThereIs) {
  Create(2, [](TcpTransportOptions* options) { options->receive_patience = std::chrono::milliseconds(20); });
  const ptrdiff_t before = OpenDescriptors();
  TestOperation receive, send;
  char byte = 0;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), {&byte, 1}, &receive);
  ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() == before + 2; }));
  EXPECT_FALSE(receive.done());
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
  EXPECT_THAT(receive.status, IsOk());
  EXPECT_EQ(byte, 'x');
  // One that crossed it goes with the next look.
  ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() <= before + 2; }));
  EXPECT_EQ(OpenDescriptors(), before + 2);
}

// The channel may be broken off, and its connection forgotten, before that.
TEST_F(ConnectionsTest, AnAbortedReceiveConnectsToNobody) {
  Create(2, [](TcpTransportOptions* options) { options->receive_patience = std::chrono::milliseconds(1); });
  TestOperation aborted, receive;
  char byte = 0;
  rank(1)->Receive(Rank(0), 7, TestEnvelope(1), {&byte, 1}, &aborted);
  rank(1)->AbortChannel(7, absl::AbortedError("enough"));
  EXPECT_THAT(aborted.status, StatusIs(Code::kAborted, "enough"));
  const ptrdiff_t before = OpenDescriptors();
  // Later than that one would have.
  rank(1)->Receive(Rank(0), 8, TestEnvelope(1), {&byte, 1}, &receive);
  ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() == before + 2; }));
  rank(1)->Abort(absl::AbortedError("the end"));
  EXPECT_TRUE(receive.done());
}

TEST_F(ConnectionsTest, APeerThatDiesBeforeItAnswersIsNotTriedUntilTheTimeout) {
  auto listener = std::make_unique<FakeListener>();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(TestOptions(0, 2)));
  ASSERT_THAT(sender->SetPeers({sender->address(), listener->address()}), IsOk());
  TestOperation send;
  sender->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(Drive({sender.get()}, [&] { return listener->Serve(""); }));
  listener = nullptr;
  ASSERT_TRUE(Await(sender.get(), [&] { return send.done(); }));
  EXPECT_THAT(send.status,
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("Connection refused"), Not(HasSubstr(kTimeoutEndedIt)))));
}

// As a listener under a flood does, or one that is out of descriptors.
TEST_F(ConnectionsTest, AConnectionThatClosesBeforeItsAnswerIsMadeAnew) {
  FakeListener listener;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(TestOptions(0, 2)));
  ASSERT_THAT(sender->SetPeers({sender->address(), listener.address()}), IsOk());
  TestOperation send;
  sender->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(Drive({sender.get()}, [&] { return listener.Serve(""); }));
    listener.Drop();
  }
  ASSERT_TRUE(Drive({sender.get()}, [&] {
    return listener.Serve(Encoded({kTcpProtocolVersion, Verdict::kAccepted, 7}));
  }));
  ASSERT_TRUE(Await(sender.get(), [&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());
}

// Whoever sends first, and whoever looks first: one connection serves both ways.
TEST_F(ConnectionsTest, TwoRanksThatConnectAtOnceShareOneConnection) {
  Create(2);
  LogLines log;
  const auto before = OpenDescriptors();
  for (int first = 0; first < 4; ++first) {
    SCOPED_TRACE(first);
    const ChannelId channel = first;
    TestOperation sends[2], receives[2];
    std::vector<unsigned char> targets[2], data[2];
    for (int i = 0; i < 2; ++i) {
      const int self = first % 2 == 0 ? i : 1 - i;
      data[self] = TestPayload(1000, self);
      targets[self].resize(1000);
      rank(self)->Receive(Rank(1 - self), channel, TestEnvelope(1), CopySink(&targets[self]), &receives[self]);
      rank(self)->Send(Rank(1 - self), channel, TestEnvelope(1), data[self].data(), 1000, &sends[self]);
      // In two of the cases one rank goes as far as it can alone.
      for (int turn = 0; turn < 100 && first >= 2; ++turn) rank(self)->Progress();
    }
    ASSERT_TRUE(DriveAll([&] { return AllDone(receives) && AllDone(sends); }));
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(sends[i].status, IsOk());
      EXPECT_THAT(receives[i].status, IsOk());
      EXPECT_EQ(targets[i], data[1 - i]);
    }
    // What crossed may still be with a listener's thread.
    ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() == before + 2 * (first + 1); }));
  }
  EXPECT_THAT(log.lines(), testing::IsEmpty());
}

// The test is rank 1, which rank 0 connects to.
TEST_F(ConnectionsTest, TheLowerRanksConnectionCounts) {
  FakeListener listener;
  Create(2);
  LogLines log;
  ASSERT_THAT(rank(0)->SetPeers({rank(0)->address(), listener.address()}), IsOk());
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(DriveAll([&] { return listener.Serve(""); }));
  Hello hello = AHello(0);
  hello.source = Rank(1);
  hello.target = Rank(0);
  const auto verdict = [&] {
    const TestPeer peer = Say(0, EncodeHello(hello));
    const absl::StatusOr<Answer> answer = ReadAnswer(peer);
    EXPECT_THAT(answer, IsOk());
    return answer.ok() ? answer->verdict : Verdict::kMalformed;
  };
  EXPECT_EQ(verdict(), Verdict::kCrossed) << "while it is being made";
  EXPECT_FALSE(send.done());
  listener.Say(Encoded({kTcpProtocolVersion, Verdict::kAccepted, hello.instance}));
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());
  EXPECT_EQ(verdict(), Verdict::kCrossed) << "one that was given up comes late";
  EXPECT_THAT(log.lines(), testing::IsEmpty());
  ++hello.instance;
  EXPECT_EQ(verdict(), Verdict::kDuplicate) << "another process";
}

TEST_F(ConnectionsTest, TheHigherRankGivesItsOwnConnectionUp) {
  FakeListener listener;
  Create(2);
  ASSERT_THAT(rank(1)->SetPeers({listener.address(), rank(1)->address()}), IsOk());
  TestOperation send;
  rank(1)->Send(Rank(0), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(DriveAll([&] { return listener.Serve(""); }));
  const TestPeer connection = Say(1, EncodeHello(AHello(0)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(connection));
  EXPECT_EQ(answer.verdict, Verdict::kAccepted);
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());
  char message[kMessageHeaderBytes + 1];
  EXPECT_THAT(ReceiveAll(connection.get(), message, sizeof(message), TestDeadline()), IsOk());
  EXPECT_EQ(message[kMessageHeaderBytes], 'x');
}

// The lower rank says that it connects, and never does: a dead end in the network, say.
TEST_F(ConnectionsTest, TheHigherRankDoesNotWaitForEverForTheOthersConnection) {
  TcpTransportOptions options = TestOptions(1, 2);
  options.connect_timeout = std::chrono::milliseconds(2500);
  FakeListener listener;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto sender, TcpTransport::Create(options));
  ASSERT_THAT(sender->SetPeers({listener.address(), sender->address()}), IsOk());
  TestOperation send, receive;
  char byte;
  sender->Receive(Rank(0), 0, TestEnvelope(1), {&byte, 1}, &receive);
  sender->Send(Rank(0), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(Drive({sender.get()}, [&] {
    if (listener.Serve(Encoded({kTcpProtocolVersion, Verdict::kCrossed, 0}))) listener.Drop();
    return send.done() && receive.done();
  }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, HasSubstr("that connection did not arrive (")));
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, HasSubstr("did not arrive")));
}

TEST_F(ConnectionsTest, APeerThatGoesBeforeAllItsSocketsAreThereFailsBothWays) {
  Create(2, [](TcpTransportOptions* options) { options->sockets = 2; });
  Hello hello = AHello(0);
  hello.sockets = 2;
  TestPeer first = Say(1, EncodeHello(hello));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Answer answer, ReadAnswer(first));
  EXPECT_EQ(answer.verdict, Verdict::kAccepted);
  TestOperation send, receive;
  char byte;
  rank(1)->Send(Rank(0), 0, TestEnvelope(1), "x", 1, &send);
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), {&byte, 1}, &receive);
  for (int i = 0; i < 10; ++i) rank(1)->Progress();
  EXPECT_FALSE(send.done() || receive.done());
  first.socket.reset();
  ASSERT_TRUE(Await(rank(1), [&] { return send.done() && receive.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, testing::EndsWith(": connection closed by peer")));
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, testing::EndsWith(": connection closed by peer")));
}

TEST_F(ConnectionsTest, SeveralSocketsShareOneConnection) {
  Create(2, [](TcpTransportOptions* options) { options->sockets = 3; });
  const auto before = OpenDescriptors();
  ExpectExchange(0, 1, 0);
  // A message may have come by the first of them before the others are accepted.
  ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() == before + 2 * 3; }));
  rank(0)->AbortChannel(0, absl::AbortedError("given up"));
  ASSERT_TRUE(DriveAll([&] { return OpenDescriptors() < before + 2 * 3; }));
}

}  // namespace
}  // namespace lockstep
