// The libfabric transport where a provider is difficult: what real ones do on machines that are not at hand, or in
// situations that cannot be brought about.

#include "transport/ofi/fake_provider.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <sys/uio.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/fork_testing.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/ofi/wire.h"
#include "transport/secure/credentials.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class FakeProviderTest : public TransportWorldTest<OfiTransport>, public testing::WithParamInterface<SecurityLevel> {
 protected:
  ~FakeProviderTest() override {
    ranks_.clear();
    EXPECT_EQ(fake_->complaints(), std::vector<std::string>());
  }

  // In place of the world that there was.
  void Create(
      int size, const FakeProviderOptions& fake,
      const std::function<void(OfiTransportOptions*)>& change = [](OfiTransportOptions*) {}) {
    ranks_.clear();
    fake_ = nullptr;
    fake_ = std::make_unique<FakeProvider>(fake);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, CreateOfiWorld(size, "", [&](OfiTransportOptions* options) {
                                    options->api = &fake_->api();
                                    options->credentials = OfiTestCredentials(GetParam());
                                    change(options);
                                  }));
  }

  // A message from 0 to 1 between these places.
  absl::Status Exchange(const void* source, void* target, size_t bytes, ChannelId channel = 0) {
    return TransportWorldTest::Exchange(0, 1, channel, source, target, bytes);
  }

  std::unique_ptr<FakeProvider> fake_;
};

INSTANTIATE_TEST_SUITE_P(Levels, FakeProviderTest, testing::Values(SecurityLevel::kNone, SecurityLevel::kAuthenticate),
                         [](const auto& info) { return std::string(Name(info.param)); });

FakeProviderOptions RegistersAll() {
  FakeProviderOptions fake;
  fake.mr_mode = kFakeRegistersAll;
  return fake;
}

TEST_P(FakeProviderTest, MemoryIsRegisteredForAMessageOrUntilItIsDeregistered) {
  Create(2, RegistersAll());
  const std::vector<unsigned char> data = TestPayload(100'000, 1);
  std::vector<unsigned char> target(data.size());
  ASSERT_THAT(Exchange(data.data(), target.data(), data.size()), IsOk());
  const size_t registered = fake_->registered();
  ASSERT_THAT(rank(0)->RegisterMemory(data.data(), data.size()), IsOk());
  ASSERT_THAT(rank(1)->RegisterMemory(target.data(), target.size()), IsOk());
  EXPECT_EQ(fake_->registered(), registered + 2);
  const int made = fake_->registrations_made();
  for (size_t bytes : {size_t{100'000}, size_t{20'000}, size_t{9000}}) {
    ASSERT_THAT(Exchange(data.data() + 100'000 - bytes, target.data(), bytes), IsOk());
  }
  EXPECT_EQ(fake_->registrations_made(), made) << "also for a part of what is registered";
  rank(0)->DeregisterMemory(data.data() + 10, 1);
  EXPECT_EQ(fake_->registered(), registered + 1);
  rank(0)->DeregisterMemory(data.data(), data.size());
  EXPECT_EQ(fake_->registered(), registered + 1);
  ASSERT_THAT(Exchange(data.data(), target.data(), data.size()), IsOk());
  EXPECT_EQ(fake_->registered(), registered + 1);
  EXPECT_EQ(fake_->registrations_made(), made + 1);
  EXPECT_TRUE(target == data);
}

TEST_P(FakeProviderTest, ARegistrationThatIsRefusedFailsTheMessageOnly) {
  Create(2, RegistersAll());
  const std::vector<unsigned char> data = TestPayload(10'000, 1);
  std::vector<unsigned char> target(data.size());
  ASSERT_THAT(Exchange("x", target.data(), 1), IsOk());
  fake_->options().registrations_max = 0;
  TestOperation receive;
  rank(1)->Receive(Rank(0), 5, TestEnvelope(1), CopySink(&target), &receive);
  ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kResourceExhausted, AllOf(HasSubstr("recv from rank 0 over ofi fake"),
                                                                       HasSubstr("fi_mr_regattr of 10000 bytes"))));
  EXPECT_THAT(Exchange("y", target.data(), 1), IsOk()) << "another channel";
}

TEST_P(FakeProviderTest, AMessageLiesInAsManyPiecesAsTheProviderTakesUnlessItsMemoryIsRegistered) {
  for (const bool registers : {false, true}) {
    for (const auto& [limit, pieces] : {std::pair(1, 1), std::pair(2, 2), std::pair(4, 4), std::pair(64, 8)}) {
      FakeProviderOptions fake = registers ? RegistersAll() : FakeProviderOptions();
      fake.iov_limit = limit;
      Create(2, fake);
      EXPECT_EQ(rank(0)->send_pieces_max(Rank(1)), registers ? 1 : pieces) << limit;
      EXPECT_EQ(rank(0)->receive_pieces_max(Rank(1)), registers ? 1 : pieces) << limit;
    }
  }
}

// Whatever stands before and behind it in the name.
TEST_P(FakeProviderTest, WhatRxmSendsLiesInOnePlace) {
  for (const char* name : {"fake;ofi_rxm", "fake;ofi_rxm;ofi_hook_perf"}) {
    FakeProviderOptions fake;
    fake.name = name;
    Create(2, fake, [name](OfiTransportOptions* options) { options->provider = name; });
    EXPECT_EQ(rank(0)->send_pieces_max(Rank(1)), 1) << name;
    EXPECT_EQ(rank(0)->receive_pieces_max(Rank(1)), 4) << name;
  }
}

// The provider has it when its receiver gives it up, and the list of its pieces goes before it comes back.
TEST_P(FakeProviderTest, AMessageInPiecesThatItsReceiverGaveUpIsLetGo) {
  Create(2, {});
  const std::vector<unsigned char> data = TestPayload(100'000, 1);
  std::vector<unsigned char> target(data.size());
  ASSERT_THAT(Exchange(data.data(), target.data(), 1), IsOk());
  const auto in_two = [](const std::vector<unsigned char>& memory) {
    auto* const begin = const_cast<unsigned char*>(memory.data());
    return std::vector<iovec>{{begin + 500, memory.size() - 500}, {begin, 500}};
  };
  TestOperation send, receive;
  {
    const std::vector<iovec> source_list = in_two(data), target_list = in_two(target);
    const MessagePieces source = {source_list, {}}, sink = {target_list, {}};
    send.pieces = &source;
    receive.pieces = &sink;
    rank(1)->Receive(Rank(0), 1, TestEnvelope(1), Sink{nullptr, target.size()}, &receive);
    rank(0)->Send(Rank(1), 1, TestEnvelope(1), nullptr, data.size(), &send);
    rank(0)->Progress();
    rank(1)->AbortChannel(1, absl::AbortedError("by the receiver"));
    ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
  }
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable));
  EXPECT_THAT(receive.status, StatusIs(Code::kAborted));
  send.pieces = receive.pieces = nullptr;
  EXPECT_THAT(Exchange(data.data(), target.data(), data.size(), 2), IsOk());
  EXPECT_TRUE(target == data);
}

TEST_P(FakeProviderTest, MessagesBringTheirOrderAlong) {
  FakeProviderOptions fake;
  fake.scramble = true;
  fake.refusals = 1;
  Create(2, fake);
  constexpr int kMessages = 300;
  std::deque<std::vector<unsigned char>> sent, received;
  std::deque<TestOperation> operations;
  for (int i = 0; i < kMessages; ++i) {
    const ChannelId channel = i % 3;
    const size_t bytes = i % 7 == 0 ? 300'000 : i % 5 * 2500;
    sent.push_back(TestPayload(bytes, i));
    received.emplace_back(bytes);
    const auto post_receive = [&] {
      rank(1)->Receive(Rank(0), channel, TestEnvelope(i), CopySink(&received.back()), &operations.emplace_back());
    };
    if (i % 2 == 0) post_receive();
    rank(0)->Send(Rank(1), channel, TestEnvelope(i), sent.back().data(), bytes, &operations.emplace_back());
    if (i % 2 == 1) post_receive();
    if (i % 20 == 0) rank(1)->Progress();
  }
  ASSERT_TRUE(DriveAll([&] { return AllDone(operations); }));
  for (const TestOperation& operation : operations) EXPECT_THAT(operation.status, IsOk());
  EXPECT_TRUE(received == sent);
}

TEST_P(FakeProviderTest, ADisconnectThatOvertakesAMessageLosesNothing) {
  FakeProviderOptions fake;
  fake.scramble = true;
  for (int round = 0; round < 20; ++round) {
    Create(2, fake);
    std::vector<unsigned char> target(8);
    // As many as it takes for another order each time.
    for (int i = 0; i <= round; ++i) ASSERT_THAT(Exchange("12345678", target.data(), 8), IsOk());
    TestOperation send, receive, none;
    rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receive);
    rank(0)->Send(Rank(1), 1, TestEnvelope(1), "abcdefgh", 8, &send);
    EXPECT_THAT(rank(0)->Close(TestDeadline()), IsOk());
    EXPECT_THAT(send.status, IsOk());
    ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
    EXPECT_THAT(receive.status, IsOk()) << "round " << round;
    EXPECT_EQ(target[7], 'h');
    rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &none);
    ASSERT_TRUE(DriveAll([&] { return none.done(); }));
    EXPECT_THAT(none.status, StatusIs(Code::kUnavailable, HasSubstr("closed by peer")));
  }
}

// A sender is done with what has left, and may end the channel before the receiver has looked.
TEST_P(FakeProviderTest, TheEndOfAChannelLosesNothingThatWasSentBefore) {
  for (const bool scramble : {false, true}) {
    for (int round = 0; round < 20; ++round) {
      FakeProviderOptions fake;
      fake.scramble = scramble;
      fake.refusals = scramble ? 0 : round % 4;
      Create(2, fake);
      const std::vector<unsigned char> data = TestPayload(kOfiEagerBytesMax + 100, 1);
      std::vector<unsigned char> target(data.size()), short_target(8);
      for (int i = 0; i <= round; ++i) ASSERT_THAT(Exchange("12345678", short_target.data(), 8), IsOk());
      TestOperation sends[2], receives[3];
      rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receives[0]);
      rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&short_target), &receives[1]);
      rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&short_target), &receives[2]);
      rank(0)->Send(Rank(1), 1, TestEnvelope(1), data.data(), data.size(), &sends[0]);
      rank(0)->Send(Rank(1), 1, TestEnvelope(1), "abcdefgh", 8, &sends[1]);
      const auto sent = [&] { return AllDone(sends); };
      // The receiver has asked for the long one, and need not look again.
      for (int look = 0; look < 100 && !sent(); ++look) rank(0)->Progress();
      ASSERT_TRUE(DriveAll(sent));
      rank(0)->AbortChannel(1, absl::CancelledError("over"));
      for (int look = 0; look < 100; ++look) rank(0)->Progress();
      ASSERT_TRUE(DriveAll([&] { return receives[2].done(); }));
      SCOPED_TRACE(scramble ? "scrambled" : "refused");
      EXPECT_THAT(receives[0].status, IsOk()) << "round " << round;
      EXPECT_TRUE(target == data);
      EXPECT_THAT(receives[1].status, IsOk()) << "round " << round;
      EXPECT_EQ(short_target[7], 'h');
      EXPECT_THAT(receives[2].status, StatusIs(Code::kUnavailable, HasSubstr("closed by peer")));
    }
  }
}

TEST_P(FakeProviderTest, AShortExchangeIsOverAtOnceAndALongOneIsLeftToOperations) {
  Create(2, FakeProviderOptions());
  ASSERT_THAT(Exchange("x", std::vector<char>(1).data(), 1), IsOk());
  const auto exchange = [&](int self, const std::vector<unsigned char>& data, std::vector<unsigned char>* target) {
    target->resize(data.size());
    return rank(self)->Exchange(Rank(1 - self), 0, TestEnvelope(7), data.data(), {target->data(), data.size()},
                                /*polls=*/100);
  };
  for (size_t bytes : {size_t{0}, size_t{8}, size_t{1000}, kOfiEagerBytesMax}) {
    const std::vector<unsigned char> data[] = {TestPayload(bytes, 1), TestPayload(bytes, 2)};
    std::vector<unsigned char> targets[2];
    EXPECT_EQ(exchange(0, data[0], &targets[0]), Transport::Exchanged::kSent) << bytes << ", the first";
    EXPECT_EQ(exchange(1, data[1], &targets[1]), Transport::Exchanged::kAll) << bytes << ", who comes last";
    EXPECT_EQ(targets[1], data[0]);
    TestOperation receive;
    rank(0)->Receive(Rank(1), 0, TestEnvelope(7), CopySink(&targets[0]), &receive);
    ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
    EXPECT_THAT(receive.status, IsOk());
    EXPECT_EQ(targets[0], data[1]);
  }
  std::vector<unsigned char> target;
  EXPECT_EQ(exchange(0, TestPayload(kOfiEagerBytesMax + 1, 1), &target), Transport::Exchanged::kNothing);
}

TEST_P(FakeProviderTest, AnExchangeIsLeftToOperationsWhereOneIsUnderWay) {
  Create(2, FakeProviderOptions());
  ASSERT_THAT(Exchange("x", std::vector<char>(1).data(), 1), IsOk());
  unsigned char bytes[8] = {};
  TestOperation receive;
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), {bytes, 8}, &receive);
  EXPECT_EQ(rank(0)->Exchange(Rank(1), 0, TestEnvelope(1), bytes, {bytes, 8}, 1), Transport::Exchanged::kNothing);
  rank(0)->AbortChannel(0, absl::CancelledError("enough"));
  EXPECT_EQ(rank(0)->Exchange(Rank(1), 0, TestEnvelope(1), bytes, {bytes, 8}, 1), Transport::Exchanged::kNothing);
  EXPECT_EQ(rank(0)->Exchange(Rank(0), 0, TestEnvelope(1), bytes, {bytes, 8}, 1), Transport::Exchanged::kNothing);
}

TEST_P(FakeProviderTest, SizesAroundEveryLimit) {
  FakeProviderOptions fake;
  fake.message_bytes_max = 20'000;
  Create(2, fake);
  const size_t piece = 20'000 / 64 * 64;
  for (size_t limit : {size_t{64} - kOfiNoticeBytes, kOfiEagerBytesMax, piece, 2 * piece, 8 * piece, 9 * piece}) {
    for (size_t bytes : {limit - 1, limit, limit + 1}) {
      const std::vector<unsigned char> data = TestPayload(bytes, 1);
      std::vector<unsigned char> target(bytes);
      ASSERT_THAT(Exchange(data.data(), target.data(), bytes), IsOk()) << bytes;
      EXPECT_TRUE(target == data) << bytes;
    }
  }
}

TEST_P(FakeProviderTest, APeerThatDoesNotAnswerIsUnavailable) {
  Create(2, {}, [](OfiTransportOptions* options) { options->connect_timeout = std::chrono::milliseconds(50); });
  fake_->Stop(fake_->addresses()[1]);
  TestOperation send, later;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(Await(rank(0), [&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, AllOf(HasSubstr("send to rank 1 over ofi fake"),
                                                              HasSubstr("no answer within 50 ms"))));
  rank(0)->Send(Rank(1), 7, TestEnvelope(1), "x", 1, &later);
  EXPECT_THAT(later.status, StatusIs(Code::kUnavailable, HasSubstr("no answer")));
}

// The peer has asked for a message, part of which is under way to it, when it stops: its memory cannot be had back.
TEST_P(FakeProviderTest, AbortOfAChannelWhosePeerStoppedEndsTheTransport) {
  Create(3, {}, [](OfiTransportOptions* options) { options->drain_timeout = std::chrono::milliseconds(50); });
  const std::vector<unsigned char> data = TestPayload(1 << 20, 1);
  std::vector<unsigned char> target(data.size());
  ASSERT_THAT(Exchange(data.data(), target.data(), data.size()), IsOk());
  TestOperation send, receive, other;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Receive(Rank(2), 3, TestEnvelope(1), CopySink(&target), &other);
  fake_->Stop(fake_->addresses()[1]);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  rank(0)->Progress();
  ASSERT_FALSE(send.done());
  rank(0)->AbortChannel(0, absl::AbortedError("given up"));
  EXPECT_THAT(send.status, StatusIs(Code::kAborted, HasSubstr("given up")));
  EXPECT_THAT(other.status, StatusIs(Code::kAborted, AllOf(HasSubstr("given up"), HasSubstr("within 50 ms"),
                                                           HasSubstr("a peer does not move"))));
  ranks_.clear();
  EXPECT_EQ(receive.completions, 1);
}

// The peer has closed one channel before, and its memory does not come back either: that is found first.
TEST_P(FakeProviderTest, AbortOfAChannelCompletesItsOperationsWhoeverFindsThatAPeerDoesNotMove) {
  constexpr std::chrono::milliseconds kDrain(1000);  // not over before the test says so
  Create(2, {}, [&](OfiTransportOptions* options) { options->drain_timeout = kDrain; });
  const std::vector<unsigned char> data(4);
  std::vector<unsigned char> first(1 << 20), second(1 << 20);
  ASSERT_THAT(Exchange(data.data(), first.data(), data.size()), IsOk());
  TestOperation closed, aborted, ended;
  rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&first), &closed);
  rank(1)->Receive(Rank(0), 2, TestEnvelope(1), CopySink(&second), &aborted);
  rank(1)->Receive(Rank(0), 3, TestEnvelope(1), Sink{first.data(), 4}, &ended);
  fake_->KeepReceives();
  // Behind the channel's end, so that this has arrived, too.
  rank(0)->AbortChannel(1, absl::AbortedError("by the sender"));
  TestOperation send;
  rank(0)->Send(Rank(1), 3, TestEnvelope(1), data.data(), data.size(), &send);
  ASSERT_TRUE(DriveAll([&] { return ended.done(); }));
  ASSERT_FALSE(closed.done());
  std::this_thread::sleep_for(kDrain + std::chrono::milliseconds(100));
  rank(1)->AbortChannel(2, absl::AbortedError("given up"));
  EXPECT_THAT(aborted.status, StatusIs(Code::kAborted, HasSubstr("given up")));
  EXPECT_EQ(aborted.completions, 1);
  EXPECT_EQ(closed.completions, 1);
}

// As ranks that share memory are told of such things in two ways, of which the peer's word may be the faster.
TEST_P(FakeProviderTest, AMessageThatWasReceivedBeforeTheChannelEndedWasSent) {
  FakeProviderOptions fake;
  fake.silent = true;
  Create(2, fake);
  const std::vector<unsigned char> data = TestPayload(100'000, 1);
  std::vector<unsigned char> target(data.size());
  ASSERT_THAT(Exchange(data.data(), target.data(), 4), IsOk());
  TestOperation sends[2], receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  for (TestOperation& send : sends) {
    rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  }
  ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_TRUE(target == data);
  EXPECT_FALSE(sends[0].done());
  rank(1)->AbortChannel(0, absl::AbortedError("over"));
  ASSERT_TRUE(DriveAll([&] { return AllDone(sends); }));
  EXPECT_THAT(sends[0].status, IsOk());
  EXPECT_THAT(sends[1].status, StatusIs(Code::kUnavailable, HasSubstr("closed by peer")));
}

// Both give the channel up while pieces are under way; other channels go on.
TEST_P(FakeProviderTest, AbortsInTheMiddleOfAMessageLeaveTheOtherChannels) {
  for (int first : {0, 1}) {
    Create(2, {});
    const std::vector<unsigned char> data = TestPayload(8 << 20, 1);
    std::vector<unsigned char> target(data.size());
    ASSERT_THAT(Exchange(data.data(), target.data(), 1), IsOk());
    TestOperation send, receive;
    rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receive);
    rank(0)->Send(Rank(1), 1, TestEnvelope(1), data.data(), data.size(), &send);
    // One half has arrived then, and the other is under way.
    for (int moves : {0, 1, 0}) rank(moves)->Progress();
    ASSERT_FALSE(receive.done());
    // The receiver has its memory at once; the sender learns from it that it has, too.
    rank(1)->AbortChannel(1, absl::AbortedError("by the receiver"));
    EXPECT_THAT(receive.status, StatusIs(Code::kAborted, "by the receiver"));
    const std::vector<unsigned char> before = target;
    EXPECT_EQ(target[data.size() / 2 - 1], data[data.size() / 2 - 1]);
    EXPECT_EQ(target.back(), 0);
    if (first == 0) rank(0)->AbortChannel(1, absl::AbortedError("by the sender"));
    ASSERT_TRUE(DriveAll([&] { return send.done(); }));
    EXPECT_EQ(send.status.code(), first == 0 ? Code::kAborted : Code::kUnavailable) << send.status;
    EXPECT_TRUE(target == before) << "written after the abort";
    EXPECT_THAT(Exchange(data.data(), target.data(), data.size(), 2), IsOk());
    EXPECT_TRUE(target == data);
  }
}

TEST_P(FakeProviderTest, APieceThatTheProviderGivesUpIsAnError) {
  Create(2, {});
  std::vector<unsigned char> target(100'000);
  const std::vector<unsigned char> data = TestPayload(target.size(), 1);
  ASSERT_THAT(Exchange(data.data(), target.data(), 1), IsOk());
  TestOperation send, receive;
  rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Send(Rank(1), 1, TestEnvelope(1), data.data(), data.size(), &send);
  rank(0)->Progress();  // takes the grant, and sends the piece
  fake_->FailNextReceive(FI_ECANCELED);
  ASSERT_TRUE(DriveAll([&] { return receive.done() && send.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, HasSubstr("given up by the provider")));
}

TEST_P(FakeProviderTest, AMessageThatItsReceiverGaveUpKeepsItsRegistration) {
  Create(2, RegistersAll());
  std::vector<unsigned char> target(100'000);
  const std::vector<unsigned char> data = TestPayload(target.size(), 1);
  ASSERT_THAT(Exchange(data.data(), target.data(), 1), IsOk());
  const size_t registered = fake_->registered();
  TestOperation send, receive;
  rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Send(Rank(1), 1, TestEnvelope(1), data.data(), data.size(), &send);
  rank(0)->Progress();
  rank(1)->AbortChannel(1, absl::AbortedError("by the receiver"));
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable));
  EXPECT_EQ(fake_->registered(), registered + 1) << "as long as the provider may read it";
  rank(0)->Abort(absl::CancelledError("over"));
}

TEST_P(FakeProviderTest, AForkedChildClosesNoRegistrationOfItsParents) {
  Create(2, RegistersAll());
  std::vector<unsigned char> target(100'000);
  ASSERT_THAT(Exchange("x", target.data(), 1), IsOk());
  TestOperation receive;
  rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receive);
  const size_t registered = fake_->registered();
  const int outcome = RunInForkedChild(
      [&] {
        ranks_.clear();
        return fake_->registered() == registered && receive.done() ? 0 : 1;
      },
      TestDeadline());
  EXPECT_EQ(outcome, 0);
  ranks_.clear();
}

// Many receives wait, and few fit the provider: what lets others move still does.
TEST_P(FakeProviderTest, NoticesPassWhereReceivesFillTheQueue) {
  FakeProviderOptions fake;
  fake.queue = 32;
  Create(2, fake, [](OfiTransportOptions* options) { options->piece_bytes = 1 << 10; });
  constexpr int kMessages = 64;
  constexpr size_t kBytes = 20'000;
  std::vector<unsigned char> one(1);
  ASSERT_THAT(Exchange("x", one.data(), 1), IsOk());
  const std::vector<unsigned char> data = TestPayload(kBytes, 1);
  std::vector<std::vector<unsigned char>> targets(2 * kMessages, std::vector<unsigned char>(kBytes));
  std::deque<TestOperation> operations(4 * kMessages);
  for (int i = 0; i < kMessages; ++i) {
    for (int self : {0, 1}) {
      const auto channel = static_cast<ChannelId>(i % 8);
      rank(self)->Receive(Rank(1 - self), channel, TestEnvelope(1), CopySink(&targets[2 * i + self]),
                          &operations[4 * i + 2 * self]);
      rank(self)->Send(Rank(1 - self), channel, TestEnvelope(1), data.data(), kBytes,
                       &operations[4 * i + 2 * self + 1]);
    }
  }
  ASSERT_TRUE(DriveAll([&] { return AllDone(operations); }));
  for (const TestOperation& operation : operations) EXPECT_THAT(operation.status, IsOk());
  for (const auto& target : targets) EXPECT_TRUE(target == data);
}

TEST_P(FakeProviderTest, AnErrorOfTheEndpointEndsTheTransportWithTheProvidersWords) {
  Create(2, {});
  std::vector<unsigned char> target(4);
  ASSERT_THAT(Exchange("1234", target.data(), 4), IsOk());
  TestOperation send, receive;
  fake_->FailNextReceive(FI_EIO);
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "1234", 4, &send);
  ASSERT_TRUE(Await(rank(1), [&] { return receive.done(); }));
  EXPECT_THAT(receive.status,
              StatusIs(Code::kUnavailable, AllOf(HasSubstr("libfabric fake"), HasSubstr("the fake's own words"))));
}

}  // namespace
}  // namespace lockstep
