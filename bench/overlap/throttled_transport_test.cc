// A throttled transport keeps the contract of the one inside, and a message comes no earlier than its link lets it.

#include "bench/overlap/throttled_transport.h"

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

absl::StatusOr<Transports> CreateRanks(int size, double bytes_per_second) {
  LOCKSTEP_ASSIGN_OR_RETURN(TcpTransports ranks, CreateTcpWorld(size, [](TcpTransportOptions*) {}));
  Transports transports;
  for (auto& rank : ranks) {
    LOCKSTEP_ASSIGN_OR_RETURN(auto throttled, ThrottledTransport::Create(std::move(rank), bytes_per_second));
    transports.push_back(std::move(throttled));
  }
  return transports;
}

TransportFactory Factory(const std::string& name, double bytes_per_second) {
  return {name, [=](int size) { return CreateRanks(size, bytes_per_second); }};
}

INSTANTIATE_TEST_SUITE_P(Throttled, TransportConformance,
                         testing::Values(Factory("TenGbit", 1.25e9), Factory("HundredMegabytes", 1e8)),
                         TransportFactoryName);

TEST(ThrottledTransport, MessagesLeaveOneAfterTheOther) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Transports ranks, CreateRanks(3, 1e6));
  // 10 KB to one rank, and 20 KB to the other behind it: 10 ms and 30 ms.
  const std::vector<unsigned char> sent = TestPayload(30'000, 1);
  std::vector<unsigned char> first(10'000), second(20'000);
  TestOperation sends[2], receives[2];
  const auto begin = Deadline::Clock::now();
  ranks[0]->Send(Rank(1), 0, TestEnvelope(1), sent.data(), 10'000, &sends[0]);
  ranks[0]->Send(Rank(2), 0, TestEnvelope(1), sent.data() + 10'000, 20'000, &sends[1]);
  ranks[1]->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&first), &receives[0]);
  ranks[2]->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&second), &receives[1]);
  ASSERT_TRUE(DriveAll(ranks, [&] { return receives[0].done(); }));
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::milliseconds(10));
  ASSERT_TRUE(DriveAll(ranks, [&] { return receives[1].done(); }));
  EXPECT_GE(Deadline::Clock::now() - begin, std::chrono::milliseconds(30));
  EXPECT_TRUE(sends[0].done());
  first.insert(first.end(), second.begin(), second.end());
  EXPECT_TRUE(first == sent);
}

// A message of hours.
TEST(ThrottledTransport, WhatIsHeldBackEndsWithItsChannelOrAll) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Transports ranks, CreateRanks(2, 1));
  const std::vector<unsigned char> sent = TestPayload(30'000, 1);
  TestOperation sends[4];
  for (int k = 0; k < 3; ++k) ranks[0]->Send(Rank(1), k, TestEnvelope(1), sent.data(), sent.size(), &sends[k]);
  EXPECT_FALSE(ranks[0]->Progress());
  ranks[0]->AbortChannel(1, absl::AbortedError("this one"));
  EXPECT_FALSE(sends[0].done());
  EXPECT_THAT(sends[1].status, StatusIs(Code::kAborted, "this one"));
  EXPECT_FALSE(sends[2].done());
  EXPECT_THAT(ranks[0]->Close(Deadline::AfterMs(20)), StatusIs(Code::kDeadlineExceeded));
  EXPECT_THAT(sends[0].status, StatusIs(Code::kCancelled, testing::HasSubstr("closed")));
  EXPECT_THAT(sends[2].status, StatusIs(Code::kCancelled, testing::HasSubstr("closed")));
  ranks[0]->Send(Rank(1), 0, TestEnvelope(1), sent.data(), sent.size(), &sends[3]);
  EXPECT_THAT(sends[3].status, StatusIs(Code::kCancelled));
  EXPECT_EQ(ranks[0]->counters(Rank(1)).sent_bytes, 0);
}

TEST(ThrottledTransport, RefusesALinkThatCarriesNothing) {
  for (const double rate : {0.0, -1.0}) {
    EXPECT_THAT(CreateRanks(2, rate).status(), StatusIs(Code::kInvalidArgument, testing::HasSubstr("a link of")));
  }
}

}  // namespace
}  // namespace lockstep
