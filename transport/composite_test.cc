// Several transports as one: what every transport promises, and what is the composite's own.

#include "transport/composite.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/pollable_transport.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using Parts = std::vector<std::unique_ptr<PollableTransport>>;

// Ranks that reach those for which `far` is true over TCP, and the others through shared memory.
absl::StatusOr<Transports> CreateComposites(int size, bool (*far)(int rank, int peer)) {
  LOCKSTEP_ASSIGN_OR_RETURN(ShmTransports near, CreateShmWorld(size));
  LOCKSTEP_ASSIGN_OR_RETURN(TcpTransports wide, CreateTcpWorld(size));
  Transports ranks;
  for (int rank = 0; rank < size; ++rank) {
    Parts parts;
    parts.push_back(std::move(near[rank]));
    parts.push_back(std::move(wide[rank]));
    std::vector<int> routes;
    for (int peer = 0; peer < size; ++peer) routes.push_back(far(rank, peer) ? 1 : 0);
    LOCKSTEP_ASSIGN_OR_RETURN(auto composite, CompositeTransport::Create(std::move(parts), routes));
    ranks.push_back(std::move(composite));
  }
  return ranks;
}

TransportFactory Factory(const std::string& name, bool (*far)(int rank, int peer)) {
  return {name, [far](int size) { return CreateComposites(size, far); }};
}

// The suite has worlds of two and three ranks: over one host's memory, between two hosts, and both.
INSTANTIATE_TEST_SUITE_P(
    Composite, TransportConformance,
    testing::Values(Factory("TwoHostsInTurn", [](int rank, int peer) { return rank % 2 != peer % 2; }),
                    Factory("TwoHostsOfTwo", [](int rank, int peer) { return rank / 2 != peer / 2; })),
    TransportFactoryName);

// Waiting covers both: what comes from either peer wakes the sleeper.
TEST(CompositeTransport, AWaitCoversAllTransports) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Transports ranks,
                                CreateComposites(3, [](int rank, int peer) { return rank + peer == 2; }));
  RunRanks(ranks, [](Transport* self) {
    for (int i = 0; i < 200; ++i) {
      for (const int source : {1, 2}) {
        TestOperation operation;
        int value = self->rank() == Rank(0) ? -1 : i;
        if (self->rank() == Rank(0)) {
          self->Receive(Rank(source), 0, TestEnvelope(1), Sink{&value, sizeof(value)}, &operation);
        } else if (self->rank() == Rank(source)) {
          self->Send(Rank(0), 0, TestEnvelope(1), &value, sizeof(value), &operation);
        } else {
          continue;
        }
        ASSERT_TRUE(Await(self, [&] { return operation.done(); }));
        ASSERT_THAT(operation.status, IsOk());
        ASSERT_EQ(value, i);
      }
    }
    EXPECT_THAT(self->Close(TestDeadline()), IsOk());
  });
}

TEST(CompositeTransport, DescribesAndCountsByRoute) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Transports ranks,
                                CreateComposites(4, [](int rank, int peer) { return rank / 2 != peer / 2; }));
  EXPECT_STREQ(ranks[0]->name(), "shm+tcp");
  EXPECT_THAT(ranks[0]->DescribePeer(Rank(1)), testing::StartsWith("shm pid "));
  EXPECT_THAT(ranks[0]->DescribePeer(Rank(2)), testing::StartsWith("tcp 127.0.0.1:"));
  TestOperation sends[2], receives[2];
  char bytes[2] = {};
  for (int i = 0; i < 2; ++i) {
    ranks[1 + i]->Receive(Rank(0), 0, TestEnvelope(1), Sink{&bytes[i], 1}, &receives[i]);
    ranks[0]->Send(Rank(1 + i), 0, TestEnvelope(1), &"xy"[i], 1, &sends[i]);
  }
  ASSERT_TRUE(DriveAll(ranks, [&] { return receives[0].done() && receives[1].done(); }));
  EXPECT_EQ(bytes[0], 'x');
  EXPECT_EQ(bytes[1], 'y');
  EXPECT_EQ(ranks[0]->counters(Rank(1)).sent_bytes, 1);
  EXPECT_EQ(ranks[0]->counters(Rank(2)).sent_bytes, 1);
  EXPECT_EQ(ranks[0]->counters(Rank(3)).sent_bytes, 0);
}

TEST(CompositeTransport, CreationSaysWhatIsWrong) {
  const auto create = [](std::vector<int> ranks, std::vector<int> routes) {
    Parts parts;
    for (const int rank : ranks) {
      auto part = ShmTransport::Create(ShmTestOptions(rank, 3));
      EXPECT_THAT(part, IsOk());
      parts.push_back(*std::move(part));
    }
    return CompositeTransport::Create(std::move(parts), std::move(routes)).status();
  };
  EXPECT_THAT(create({}, {}), StatusIs(Code::kInvalidArgument, testing::HasSubstr("of no transports")));
  EXPECT_THAT(create({0, 1}, {0, 0, 0}),
              StatusIs(Code::kInvalidArgument, testing::HasSubstr("shm is of rank 1 of 3, shm of rank 0 of 3")));
  EXPECT_THAT(create({0}, {0, 0}), StatusIs(Code::kInvalidArgument, testing::HasSubstr("2 routes for a world of 3")));
  EXPECT_THAT(create({0, 0}, {0, 1, 2}),
              StatusIs(Code::kInvalidArgument, testing::HasSubstr("the route to rank 2 is 2 of 2")));
  EXPECT_THAT(create({0, 0}, {7, 1, 0}), IsOk());
}

}  // namespace
}  // namespace lockstep
