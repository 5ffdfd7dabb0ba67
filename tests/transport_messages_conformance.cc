// What every transport promises of messages: order, channels, sinks, envelopes, counters. Part of
// tests/transport_conformance.h.

#include "tests/transport_conformance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/transport.h"

namespace lockstep {

TEST_P(TransportConformance, TellsWhoItIs) {
  if (!Create(3)) return;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(rank(i)->rank(), Rank(i));
    EXPECT_EQ(rank(i)->size(), 3);
    // Its first word is the transport that reaches the peer, which may be one of several that the name lists.
    const std::string description = rank(i)->DescribePeer(Rank((i + 1) % 3));
    EXPECT_THAT(rank(i)->name(), testing::HasSubstr(description.substr(0, description.find(' '))));
  }
}

// Every rank sends several messages of several sizes to every other on every channel, all at once, each rank a thread
// of its own. The payload of each message is known to its receiver alone, so any swap, loss or tear shows.
TEST_P(TransportConformance, KeepsOrderPerPairAndChannel) {
  constexpr int kRanks = 3, kChannels = 3, kMessages = 40;
  if (!Create(kRanks)) return;
  const auto payload = [](int source, int target, int channel, int k) {
    const uint32_t seed = ((source * kRanks + target) * kChannels + channel) * kMessages + k;
    return TestPayload(k % 10 == 0 ? 100'000 : seed % 300, seed);
  };
  RunRanks(ranks_, [&](Transport* self) {
    std::deque<TestOperation> operations;
    std::deque<std::vector<unsigned char>> sent, received, expected;
    for (int k = 0; k < kMessages; ++k) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (Rank(peer) == self->rank()) continue;
        for (int channel = 0; channel < kChannels; ++channel) {
          sent.push_back(payload(self->rank().value(), peer, channel, k));
          self->Send(Rank(peer), channel, TestEnvelope(k), sent.back().data(), sent.back().size(),
                     &operations.emplace_back());
          expected.push_back(payload(peer, self->rank().value(), channel, k));
          received.emplace_back(expected.back().size());
          self->Receive(Rank(peer), channel, TestEnvelope(k), CopySink(&received.back()), &operations.emplace_back());
        }
      }
    }
    Await(self, [&] { return AllDone(operations); });
    for (const TestOperation& operation : operations) EXPECT_THAT(operation.status, IsOk());
    EXPECT_EQ(received, expected);
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
    for (const TestOperation& operation : operations) EXPECT_EQ(operation.completions, 1);
  });
}

TEST_P(TransportConformance, AChannelThatIsNotDrainedHoldsUpNoOther) {
  if (!Create(2)) return;
  const std::vector<unsigned char>& large = LargePayload();
  TestOperation send;
  rank(0)->Send(Rank(1), 1, TestEnvelope(1), large.data(), large.size(), &send);
  for (int i = 0; i < 10; ++i) Exchange(2, TestPayload(100'000, i));
  EXPECT_FALSE(send.done()) << "a message that nobody receives stays with its sender";

  TestOperation receive;
  std::vector<unsigned char> target(large.size());
  rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &receive);
  ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
  EXPECT_THAT(send.status, IsOk());
  EXPECT_TRUE(target == large);
}

// Both ranks wait for one channel before they touch the other, in opposite orders, with messages that no medium
// buffers.
TEST_P(TransportConformance, RanksMayUseChannelsInDifferentOrders) {
  if (!Create(2)) return;
  constexpr size_t kBytes = 8 << 20;
  RunRanks(ranks_, [&](Transport* self) {
    const Rank peer(1 - self->rank().value());
    const std::vector<unsigned char> data = TestPayload(kBytes, 5);
    std::vector<unsigned char> targets[2] = {std::vector<unsigned char>(kBytes), std::vector<unsigned char>(kBytes)};
    TestOperation sends[2], receives[2];
    for (int step = 0; step < 2; ++step) {
      const ChannelId channel = self->rank() == Rank(0) ? step : 1 - step;
      self->Send(peer, channel, TestEnvelope(1), data.data(), data.size(), &sends[channel]);
    }
    for (int step = 0; step < 2; ++step) {
      const ChannelId channel = self->rank() == Rank(0) ? step : 1 - step;
      self->Receive(peer, channel, TestEnvelope(1), CopySink(&targets[channel]), &receives[channel]);
      Await(self, [&] { return receives[channel].done(); });
      EXPECT_TRUE(targets[channel] == data);
    }
    Await(self, [&] { return sends[0].done() && sends[1].done(); });
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
  });
}

TEST_P(TransportConformance, CopiesMessagesOfAllSizesBothWays) {
  if (!Create(2)) return;
  RunRanks(ranks_, [](Transport* self) {
    const Rank peer(1 - self->rank().value());
    for (size_t bytes : {0, 1, 7, 48, 64 << 10, (3 << 20) + 5, 33}) {
      const std::vector<unsigned char> data = TestPayload(bytes, 100 + self->rank().value());
      std::vector<unsigned char> target(bytes);
      TestOperation send, receive;
      self->Send(peer, 0, TestEnvelope(3), data.data(), bytes, &send);
      self->Receive(peer, 0, TestEnvelope(3), CopySink(&target), &receive);
      if (!Await(self, [&] { return send.done() && receive.done(); })) return;
      EXPECT_THAT(send.status, IsOk());
      EXPECT_THAT(receive.status, IsOk());
      EXPECT_TRUE(target == TestPayload(bytes, 100 + peer.value())) << bytes << " bytes";
    }
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
  });
}

TEST_P(TransportConformance, ReducesIntoTheTarget) {
  if (!Create(2)) return;
  for (size_t count : {0, 1, 7, 16 * 1024 + 3, 200'001}) {
    for (bool in_place : {false, true}) {
      std::vector<float> sent(count), own(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        sent[i] = static_cast<float>(i % 1000);
        own[i] = static_cast<float>(i % 77) / 2;
        expected[i] = sent[i] + own[i];
      }
      const std::vector<float> before = own;
      std::vector<float> other(count, -1.0f);
      std::vector<float>& target = in_place ? own : other;
      TestOperation send, receive;
      const Sink sink = {target.data(), count * sizeof(float), own.data(), &kAddFloats};
      rank(1)->Receive(Rank(0), 4, TestEnvelope(1), sink, &receive);
      rank(0)->Send(Rank(1), 4, TestEnvelope(1), sent.data(), count * sizeof(float), &send);
      ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
      EXPECT_THAT(receive.status, IsOk());
      EXPECT_TRUE(target == expected) << count << " elements, in place " << in_place;
      EXPECT_TRUE(in_place || own == before);
    }
  }
}

// Every message lies in pieces on both sides, cut differently, and in some cases on one side only.
TEST_P(TransportConformance, MovesMessagesThatLieInPieces) {
  if (!Create(2)) return;
  const int send_max = rank(0)->send_pieces_max(Rank(1));
  const int receive_max = rank(1)->receive_pieces_max(Rank(0));
  if (receive_max == 1) GTEST_SKIP() << "messages are contiguous";
  const auto cut = [](std::vector<float>* values, size_t piece, int max) {
    std::vector<iovec> pieces;
    for (size_t at = 0; at < values->size(); at += piece, piece = piece * 3 / 2 + 1) {
      if (pieces.size() + 1 == max) piece = values->size();
      pieces.push_back({&(*values)[at], std::min(piece, values->size() - at) * sizeof(float)});
    }
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  };
  const auto in_order = [](const std::vector<iovec>& pieces) {
    std::vector<float> values;
    for (const iovec& piece : pieces) {
      const auto* const begin = static_cast<const float*>(piece.iov_base);
      values.insert(values.end(), begin, begin + piece.iov_len / sizeof(float));
    }
    return values;
  };
  for (const size_t count : {1, 7, 200, 300, 16 * 1024 + 3, 500'001}) {
    for (const bool reduces : {false, true}) {
      for (const bool sends_pieces : {false, true}) {
        std::vector<float> sent(count), own(count), target(count, -1);
        for (size_t i = 0; i < count; ++i) {
          sent[i] = static_cast<float>(i % 1000);
          own[i] = static_cast<float>(i % 77) / 2;
        }
        const std::vector<iovec> source_pieces = cut(&sent, 1, send_max);
        const std::vector<iovec> target_pieces = cut(&target, 5, receive_max);
        const std::vector<iovec> operand_pieces = cut(&own, 40, receive_max);
        std::vector<float> expected = sends_pieces ? in_order(source_pieces) : sent;
        const std::vector<float> addends = in_order(operand_pieces);
        for (size_t i = 0; i < count && reduces; ++i) expected[i] += addends[i];

        const MessagePieces source = {source_pieces, {}};
        const MessagePieces sink_pieces = {target_pieces, operand_pieces};
        TestOperation send, receive;
        if (sends_pieces) send.pieces = &source;
        receive.pieces = &sink_pieces;
        const Sink sink = {nullptr, count * sizeof(float), nullptr, reduces ? &kAddFloats : nullptr};
        rank(1)->Receive(Rank(0), 4, TestEnvelope(1), sink, &receive);
        rank(0)->Send(Rank(1), 4, TestEnvelope(1), sends_pieces ? nullptr : sent.data(), sink.bytes, &send);
        ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
        EXPECT_THAT(receive.status, IsOk());
        EXPECT_TRUE(in_order(target_pieces) == expected) << count << " elements, reduces " << reduces;
      }
    }
  }
}

// The widest elements, while copies on another channel pass through the same staging memory.
TEST_P(TransportConformance, ReducesElementsThatArriveInPartsWhileOthersArrive) {
  if (!Create(2)) return;
  constexpr size_t kCount = 60'001;
  std::vector<Wide> sent[2], target[2];
  std::deque<TestOperation> operations;
  for (int channel = 0; channel < 2; ++channel) {
    for (size_t i = 0; i < kCount; ++i) {
      sent[channel].push_back({static_cast<double>(i), channel + 0.5});
      target[channel].push_back({1, static_cast<double>(i)});
    }
    const Sink sink = {target[channel].data(), kCount * sizeof(Wide), target[channel].data(), &kAddWide};
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), sink, &operations.emplace_back());
    rank(0)->Send(Rank(1), channel, TestEnvelope(1), sent[channel].data(), kCount * sizeof(Wide),
                  &operations.emplace_back());
  }
  ASSERT_TRUE(DriveAll([&] { return AllDone(operations); }));
  for (int channel = 0; channel < 2; ++channel) {
    for (size_t i = 0; i < kCount; ++i) {
      const Wide expected = {1 + static_cast<double>(i), static_cast<double>(i) + channel + 0.5};
      ASSERT_TRUE(target[channel][i] == expected) << "channel " << channel << ", element " << i;
    }
  }
}

TEST_P(TransportConformance, ReceivesWhatWasSentBeforeAndAfterItAsked) {
  if (!Create(2)) return;
  const std::vector<unsigned char> data = TestPayload(1000, 1);
  for (bool send_first : {true, false}) {
    TestOperation send, receive;
    std::vector<unsigned char> target(data.size());
    const auto post_send = [&] { rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send); };
    const auto post_receive = [&] { rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive); };
    if (send_first) {
      post_send();
      // 1000 bytes fit into any medium, so the send ends without a receive.
      ASSERT_TRUE(DriveAll([&] { return send.done(); }));
      post_receive();
    } else {
      post_receive();
      rank(1)->Progress();
      EXPECT_FALSE(receive.done());
      post_send();
    }
    ASSERT_TRUE(DriveAll([&] { return send.done() && receive.done(); }));
    EXPECT_EQ(target, data);
  }
}

TEST_P(TransportConformance, AnotherEnvelopeOrLengthBreaksTheChannelAndTellsWhatArrived) {
  if (!Create(2)) return;
  struct Case {
    const char* name;
    unsigned char sent_envelope;
    size_t sent_bytes;
    const char* message;
  };
  // Short enough for any medium to take it without a receive.
  const std::vector<unsigned char> data = TestPayload(20'000, 1);
  ChannelId channel = 10;
  for (const Case& c :
       {Case{"envelope", 2, 16, "another envelope"}, Case{"shorter", 1, 8, "8 bytes arrived where 16"},
        Case{"empty", 1, 0, "0 bytes arrived where 16"}, Case{"longer", 1, 20'000, "20000 bytes arrived where 16"}}) {
    SCOPED_TRACE(c.name);
    ++channel;
    TestOperation good_send, good, send, bad, queued, later;
    std::vector<unsigned char> target(16), untouched(4, 0xab);
    rank(0)->Send(Rank(1), channel, TestEnvelope(1), data.data(), 16, &good_send);
    rank(0)->Send(Rank(1), channel, TestEnvelope(c.sent_envelope), data.data(), c.sent_bytes, &send);
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), CopySink(&target), &good);
    ASSERT_TRUE(DriveAll([&] { return good.done(); }));
    EXPECT_THAT(good.status, IsOk());
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), CopySink(&target), &bad);
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), CopySink(&untouched), &queued);
    ASSERT_TRUE(DriveAll([&] { return bad.done() && queued.done() && send.done(); }));
    EXPECT_THAT(bad.status, StatusIs(Code::kFailedPrecondition, testing::HasSubstr(c.message)));
    EXPECT_THAT(bad.status.message(), testing::HasSubstr("recv from rank 0 over "));
    EXPECT_EQ(bad.arrived, TestEnvelope(c.sent_envelope));
    EXPECT_EQ(bad.arrived_bytes, c.sent_bytes);
    EXPECT_THAT(queued.status, StatusIs(Code::kFailedPrecondition, testing::HasSubstr("is broken")));
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), CopySink(&untouched), &later);
    ASSERT_TRUE(later.done());
    EXPECT_THAT(later.status, StatusIs(Code::kFailedPrecondition, testing::HasSubstr("is broken")));
    EXPECT_EQ(untouched, std::vector<unsigned char>(4, 0xab));
  }
  Exchange(5, TestPayload(100, 2));
}

// Whatever a transport does of it by itself, the rest is done by operations; now and then one rank uses only those.
TEST_P(TransportConformance, ExchangesShortMessagesAtOnceOrByOperations) {
  if (!Create(2)) return;
  static constexpr int kRounds = 400;
  RunRanks(ranks_, [](Transport* self) {
    const int me = self->rank().value();
    const Rank peer(1 - me);
    for (int round = 0; round < kRounds; ++round) {
      const size_t count = 1 + round % 300;
      std::vector<float> own(count), other(count), expected(count);
      for (size_t i = 0; i < count; ++i) {
        own[i] = static_cast<float>(me * 1000 + round + i);
        expected[i] = own[i] + static_cast<float>((1 - me) * 1000 + round + i);
      }
      std::vector<float>& target = round % 2 == 0 ? own : other;
      const Sink sink = {target.data(), count * sizeof(float), own.data(), &kAddFloats};
      const Envelope envelope = TestEnvelope(static_cast<unsigned char>(round));
      Transport::Exchanged exchanged = Transport::Exchanged::kNothing;
      if (round % 7 != me) exchanged = self->Exchange(peer, 2, envelope, own.data(), sink, /*polls=*/round % 20);
      const std::vector<float> sent = own;
      TestOperation send, receive;
      if (exchanged == Transport::Exchanged::kNothing) {
        self->Send(peer, 2, envelope, sent.data(), sink.bytes, &send);
        ASSERT_TRUE(Await(self, [&] { return send.done(); })) << round;
        EXPECT_THAT(send.status, IsOk());
      }
      if (exchanged != Transport::Exchanged::kAll) {
        self->Receive(peer, 2, envelope, sink, &receive);
        ASSERT_TRUE(Await(self, [&] { return receive.done(); })) << round;
        EXPECT_THAT(receive.status, IsOk());
      }
      ASSERT_EQ(target, expected) << "round " << round;
    }
    EXPECT_EQ(self->counters(peer).sent_messages, kRounds);
    EXPECT_EQ(self->counters(peer).received_messages, kRounds);
    EXPECT_EQ(self->counters(peer).sent_bytes, self->counters(peer).received_bytes);
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
  });
}

TEST_P(TransportConformance, AnExchangeThatMeetsAnotherMessageTakesNothingAndTheReceiveTells) {
  if (!Create(2)) return;
  Exchange(5, {1});
  unsigned char bytes[4] = {1, 2, 3, 4};
  unsigned char target[4] = {};
  TestOperation send, answer, receive;
  rank(0)->Send(Rank(1), 5, TestEnvelope(1), bytes, 4, &send);
  const Sink sink = {target, 4};
  const Transport::Exchanged exchanged = rank(1)->Exchange(Rank(0), 5, TestEnvelope(2), bytes, sink, /*polls=*/100);
  ASSERT_NE(exchanged, Transport::Exchanged::kAll);
  if (exchanged == Transport::Exchanged::kNothing) rank(1)->Send(Rank(0), 5, TestEnvelope(2), bytes, 4, &answer);
  rank(1)->Receive(Rank(0), 5, TestEnvelope(2), sink, &receive);
  ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kFailedPrecondition, testing::HasSubstr("another envelope")));
  EXPECT_EQ(receive.arrived, TestEnvelope(1));
}

TEST_P(TransportConformance, ManyMessagesAreInFlightAtOnce) {
  if (!Create(2)) return;
  constexpr int kMessages = 2000;
  std::vector<uint32_t> sent(kMessages), received(kMessages);
  std::deque<TestOperation> operations;
  for (int i = 0; i < kMessages; ++i) {
    sent[i] = i * 7;
    rank(0)->Send(Rank(1), 0, TestEnvelope(1), &sent[i], sizeof(sent[i]), &operations.emplace_back());
  }
  for (int i = 0; i < kMessages; ++i) {
    const Sink sink = {&received[i], sizeof(received[i])};
    rank(1)->Receive(Rank(0), 0, TestEnvelope(1), sink, &operations.emplace_back());
  }
  ASSERT_TRUE(DriveAll([&] { return AllDone(operations); }));
  EXPECT_EQ(received, sent);
}

// Each completion posts the next operation, reusing the one that completed. Enough of them to overflow the stack, were
// completions to nest.
TEST_P(TransportConformance, CompletionsMayPostOperations) {
  if (!Create(2)) return;
  constexpr int kMessages = 20'000;
  TestOperation send, receive;
  uint32_t sending = 0, arriving = 0;
  const Sink sink = {&arriving, sizeof(arriving)};
  const auto post_send = [&] { rank(0)->Send(Rank(1), 0, TestEnvelope(1), &sending, sizeof(sending), &send); };
  const auto post_receive = [&] { rank(1)->Receive(Rank(0), 0, TestEnvelope(1), sink, &receive); };
  send.then = [&] {
    if (++sending < kMessages && send.status.ok()) post_send();
  };
  receive.then = [&] {
    EXPECT_EQ(arriving + 1, receive.completions);
    if (receive.completions < kMessages && receive.status.ok()) post_receive();
  };
  post_send();
  post_receive();
  ASSERT_TRUE(DriveAll([&] { return receive.completions == kMessages; }));
  EXPECT_EQ(send.completions, kMessages);
  send.then = receive.then = nullptr;
}

TEST_P(TransportConformance, CountsPayloadAndMessagesByPeer) {
  if (!Create(3)) return;
  for (size_t bytes : {0, 10, 200'000}) Exchange(bytes % 7, TestPayload(bytes, 1));
  EXPECT_EQ(rank(0)->counters(Rank(1)).sent_bytes, 200'010);
  EXPECT_EQ(rank(0)->counters(Rank(1)).sent_messages, 3);
  EXPECT_EQ(rank(0)->counters(Rank(1)).received_messages, 0);
  EXPECT_EQ(rank(1)->counters(Rank(0)).received_bytes, 200'010);
  EXPECT_EQ(rank(1)->counters(Rank(0)).received_messages, 3);
  EXPECT_EQ(rank(0)->counters(Rank(2)).sent_messages, 0);
  EXPECT_EQ(rank(2)->counters(Rank(0)).received_bytes, 0);
}

TEST_P(TransportConformance, RefusesPeersThatAreNoneAndPartsOfElements) {
  if (!Create(2)) return;
  unsigned char bytes[6] = {};
  for (int peer : {0, 2, -1}) {
    TestOperation send, receive;
    rank(0)->Send(Rank(peer), 0, TestEnvelope(1), bytes, 4, &send);
    rank(0)->Receive(Rank(peer), 0, TestEnvelope(1), Sink{bytes, 4}, &receive);
    EXPECT_THAT(send.status, StatusIs(Code::kInvalidArgument, testing::HasSubstr("no peer " + std::to_string(peer))));
    EXPECT_THAT(receive.status, StatusIs(Code::kInvalidArgument, testing::HasSubstr("rank 0 of 2")));
  }
  TestOperation receive;
  const Sink sink = {bytes, 6, bytes, &kAddFloats};
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), sink, &receive);
  EXPECT_THAT(receive.status, StatusIs(Code::kInvalidArgument, testing::HasSubstr("6 bytes")));
}

}  // namespace lockstep
