#include "transport/loopback/loopback.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

Transports CreateTransports(LoopbackNetwork* network, int size) {
  Transports transports;
  for (int i = 0; i < size; ++i) transports.push_back(network->CreateTransport(Rank(i)));
  return transports;
}

TransportFactory Factory(const std::string& name, const LoopbackOptions& options) {
  // The factory outlives the transports of a test, so it keeps their network.
  auto network = std::make_shared<std::unique_ptr<LoopbackNetwork>>();
  return {name, [network, options](int size) {
            *network = std::make_unique<LoopbackNetwork>(size, options);
            return CreateTransports(network->get(), size);
          }};
}

LoopbackOptions Seed(uint64_t seed) {
  LoopbackOptions options;
  options.seed = seed;
  return options;
}

// Every header and element is cut, and whatever can be late is.
LoopbackOptions Crumbs() {
  LoopbackOptions options;
  options.seed = 4;
  options.buffer_bytes = 8 << 10;
  options.piece_bytes_max = 4093;
  options.delay_max = 6;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Loopback, TransportConformance,
                         testing::Values(Factory("Seed1", Seed(1)), Factory("Seed2", Seed(2)),
                                         Factory("Crumbs", Crumbs())),
                         TransportFactoryName);

TEST(Loopback, ASendBeyondTheBufferWaitsForTheReceiver) {
  LoopbackOptions options;
  options.buffer_bytes = 1000;
  LoopbackNetwork network(2, options);
  const Transports ranks = CreateTransports(&network, 2);
  const std::vector<unsigned char> data = TestPayload(2000, 1);
  std::vector<unsigned char> target(2000);
  TestOperation small, large, receive_small, receive_large;
  ranks[0]->Send(Rank(1), 0, TestEnvelope(1), data.data(), 100, &small);
  ranks[0]->Send(Rank(1), 0, TestEnvelope(1), data.data(), 2000, &large);
  for (int i = 0; i < 100; ++i) ranks[0]->Progress();
  EXPECT_TRUE(small.done());
  EXPECT_FALSE(large.done());
  ranks[1]->Receive(Rank(0), 0, TestEnvelope(1), Sink{target.data(), 100}, &receive_small);
  ranks[1]->Receive(Rank(0), 0, TestEnvelope(1), Sink{target.data(), 2000}, &receive_large);
  ASSERT_TRUE(DriveAll(ranks, [&] { return large.done() && receive_large.done(); }));
  EXPECT_EQ(target, data);
}

TEST(Loopback, TheObserverSeesEachMessageWhenItIsSent) {
  std::vector<std::string> seen;
  LoopbackOptions options;
  options.observer = [&seen](const LoopbackMessage& message) {
    seen.push_back(std::to_string(message.source.value()) + ">" + std::to_string(message.target.value()) + " channel " +
                   std::to_string(message.channel) + ": " + std::to_string(message.bytes) + " bytes, envelope " +
                   std::to_string(message.envelope.front()));
  };
  LoopbackNetwork network(3, options);
  const Transports ranks = CreateTransports(&network, 3);
  TestOperation first, second;
  const unsigned char data[5] = {};
  ranks[0]->Send(Rank(2), 7, TestEnvelope(1), data, 5, &first);
  EXPECT_THAT(seen, testing::ElementsAre("0>2 channel 7: 5 bytes, envelope 1"));
  ranks[2]->Send(Rank(1), 8, TestEnvelope(2), nullptr, 0, &second);
  EXPECT_THAT(seen, testing::ElementsAre("0>2 channel 7: 5 bytes, envelope 1", "2>1 channel 8: 0 bytes, envelope 2"));
}

// In which order the messages of several channels complete, driven by one thread.
std::vector<int> CompletionOrder(uint64_t seed) {
  LoopbackNetwork network(2, Seed(seed));
  const Transports ranks = CreateTransports(&network, 2);
  constexpr int kMessages = 12;
  const std::vector<unsigned char> data = TestPayload(200'000, 1);
  std::vector<unsigned char> targets[kMessages];
  TestOperation sends[kMessages], receives[kMessages];
  std::vector<int> order;
  for (int i = 0; i < kMessages; ++i) {
    targets[i].resize(data.size());
    receives[i].then = [&order, i] { order.push_back(i); };
    ranks[1]->Receive(Rank(0), i % 6, TestEnvelope(1), CopySink(&targets[i]), &receives[i]);
    ranks[0]->Send(Rank(1), i % 6, TestEnvelope(1), data.data(), data.size(), &sends[i]);
  }
  DriveAll(ranks, [&order] { return order.size() == kMessages; });
  return order;
}

TEST(Loopback, DeliveryFollowsFromTheSeed) {
  const std::vector<int> first = CompletionOrder(1);
  EXPECT_EQ(first, CompletionOrder(1));
  bool differs = false;
  for (uint64_t seed = 2; seed < 6; ++seed) differs |= CompletionOrder(seed) != first;
  EXPECT_TRUE(differs);
}

TEST(Loopback, ADisconnectedRankFailsForItselfAndItsPeersAfterWhatHadArrived) {
  LoopbackNetwork network(3);
  const Transports ranks = CreateTransports(&network, 3);
  const std::vector<unsigned char> data = TestPayload(100, 1);
  std::vector<unsigned char> target(100), never(100);
  TestOperation send, receive, dead_receive, receive_after, send_after, others_send, others_receive;
  ranks[0]->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  ranks[0]->Receive(Rank(1), 0, TestEnvelope(1), CopySink(&never), &dead_receive);
  ASSERT_TRUE(DriveAll(ranks, [&] { return send.done(); }));
  network.Disconnect(Rank(0));

  ranks[1]->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  ranks[1]->Receive(Rank(0), 5, TestEnvelope(1), CopySink(&never), &receive_after);
  ranks[1]->Send(Rank(0), 0, TestEnvelope(1), data.data(), data.size(), &send_after);
  ASSERT_TRUE(Await(ranks[1].get(), [&] { return receive.done() && receive_after.done() && send_after.done(); }));
  EXPECT_THAT(receive.status, IsOk());
  EXPECT_EQ(target, data);
  const auto unavailable = absl::StatusCode::kUnavailable;
  EXPECT_THAT(receive_after.status,
              StatusIs(unavailable, "recv from rank 0 over loopback rank 0: connection closed by peer"));
  EXPECT_THAT(send_after.status,
              StatusIs(unavailable, "send to rank 0 over loopback rank 0: connection closed by peer"));
  ASSERT_TRUE(Await(ranks[0].get(), [&] { return dead_receive.done(); }));
  EXPECT_THAT(dead_receive.status, StatusIs(unavailable, testing::HasSubstr("rank 1")));

  ranks[1]->Send(Rank(2), 0, TestEnvelope(1), data.data(), data.size(), &others_send);
  ranks[2]->Receive(Rank(1), 0, TestEnvelope(1), CopySink(&target), &others_receive);
  ASSERT_TRUE(DriveAll(ranks, [&] { return others_receive.done(); }));
  EXPECT_THAT(others_receive.status, IsOk());
}

}  // namespace
}  // namespace lockstep
