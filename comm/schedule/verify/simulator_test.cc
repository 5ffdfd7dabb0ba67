#include "comm/schedule/verify/simulator.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/select/link_sharing.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::schedule_testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Round numbers: 1 ns for a byte inside a host, 10 between hosts, a tenth for arithmetic, chunks of 100 bytes.
Network TestNetwork(int ranks_per_host) {
  Network network;
  network.local = {/*latency_ns=*/1000, /*byte_ns=*/1};
  network.remote = {/*latency_ns=*/50'000, /*byte_ns=*/10};
  network.reduced_byte_ns = 0.1;
  network.copied_byte_ns = 0.01;
  network.chunk_bytes = 100;
  network.ranks_per_host = ranks_per_host;
  return network;
}

// One block, a list of steps for each rank.
std::vector<Schedule> World(std::vector<std::vector<Step>> steps) {
  return schedule_testing::World(Collective::kAllReduce, /*blocks=*/1, /*scratch_blocks=*/0, std::move(steps));
}

double Ns(const std::vector<Schedule>& schedules, int64_t bytes, const Network& network) {
  const absl::StatusOr<Simulation> simulation = Simulate(schedules, bytes, network);
  EXPECT_THAT(simulation, IsOk());
  return simulation.ok() ? simulation->ns : -1;
}

TEST(Simulator, AMessageTakesItsBytesAndTheLatency) {
  const std::vector<Schedule> world = World({{Send(Input(0), 1)}, {Receive(0, Output(0))}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(2)), 400 + 1000);
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(1)), 4000 + 50'000);
  EXPECT_DOUBLE_EQ(Ns(world, 0, TestNetwork(2)), 1000);
}

TEST(Simulator, EitherEndWorksForEveryChunk) {
  Network network = TestNetwork(2);
  network.local.message_ns = 30;
  const std::vector<Schedule> world = World({{Send(Input(0), 1)}, {Receive(0, Output(0))}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, network), 4 * 130 + 1000);
  network.remote.message_ns = 50;
  network.ranks_per_host = 1;
  EXPECT_DOUBLE_EQ(Ns(world, 400, network), 4 * 1050 + 50'000);
}

TEST(Simulator, PassesChunksOnBeforeTheMessageIsWhole) {
  const std::vector<Schedule> world =
      World({{Send(Input(0), 1)}, {Receive(0, Output(0)), Send(Output(0), 2, {0})}, {Receive(1, Output(0))}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(3)), 2 * (100 + 1000) + 300);
}

TEST(Simulator, WaitsForTheWholeOfAnotherOperand) {
  // What is sent on is not the block that arrives, so all of it has to be there.
  const std::vector<Schedule> world =
      World({{Send(Input(0), 1)}, {Receive(0, Output(0)), Send(Scratch(0), 2, {0})}, {Receive(1, Output(0))}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(3)), 2 * (400 + 1000));
}

TEST(Simulator, ARankSendsOneAfterTheOtherAndReceivesOneAfterTheOther) {
  const std::vector<Schedule> out =
      World({{Send(Input(0), 1), Send(Input(0), 2)}, {Receive(0, Output(0))}, {Receive(0, Output(0))}});
  EXPECT_DOUBLE_EQ(Ns(out, 400, TestNetwork(3)), 2 * 400 + 1000);
  const std::vector<Schedule> in =
      World({{Receive(1, Output(0)), Receive(2, Output(0), {0})}, {Send(Input(0), 0)}, {Send(Input(0), 0)}});
  EXPECT_DOUBLE_EQ(Ns(in, 400, TestNetwork(3)), 400 + 1000 + 400);
}

TEST(Simulator, RanksOfAHostShareItsLink) {
  const std::vector<Schedule> both =
      World({{Send(Input(0), 2)}, {Send(Input(0), 3)}, {Receive(0, Output(0))}, {Receive(1, Output(0))}});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation shared, Simulate(both, 400, TestNetwork(2)));
  EXPECT_NEAR(shared.ns, 2 * 4000 + 50'000, 1e-6);
  EXPECT_DOUBLE_EQ(shared.remote_sent_bytes, 800);
  EXPECT_DOUBLE_EQ(shared.remote_received_bytes, 800);
  // In another round, it has the link to itself.
  std::vector<Schedule> apart = both;
  apart[1].steps[0].round = 1;
  EXPECT_DOUBLE_EQ(Ns(apart, 400, TestNetwork(2)), 4000 + 50'000);
  // A rank that has nothing to send leaves the link to the other.
  const std::vector<Schedule> one = World({{Send(Input(0), 2)}, {}, {Receive(0, Output(0))}, {}});
  EXPECT_NEAR(Ns(one, 400, TestNetwork(2)), 4000 + 50'000, 1e-6);
  // Inside a host there is nothing to share.
  const std::vector<Schedule> inside =
      World({{Send(Input(0), 1)}, {Receive(0, Output(0))}, {Send(Input(0), 3)}, {Receive(2, Output(0))}});
  EXPECT_DOUBLE_EQ(Ns(inside, 400, TestNetwork(2)), 400 + 1000);
}

TEST(Simulator, AShortMessageLeavesASharedLinkBeforeALongOne) {
  // One block of three to rank 2, two to rank 3.
  std::vector<Schedule> world =
      World({{Send(Input(0), 2)}, {Send(Input(0, 2), 3)}, {Receive(0, Output(0))}, {Receive(1, Output(0, 2))}});
  for (Schedule& schedule : world) schedule.blocks = 3;
  EXPECT_DOUBLE_EQ(Ns(world, 300, TestNetwork(2)), (100 + 200) * 10 + 50'000);
  // The same in two messages of the round.
  std::vector<Schedule> two = world;
  two[1].steps = {Send(Input(0), 3), Send(Input(1), 3)};
  two[3].steps = {Receive(1, Output(0)), Receive(1, Output(1))};
  EXPECT_DOUBLE_EQ(Ns(two, 300, TestNetwork(2)), (100 + 200) * 10 + 50'000);
  // The short one, passed on inside the host, is there when both have had their share of 100 bytes.
  world[2].steps.push_back(Send(Output(0), 3, {0}));
  world[3].steps.push_back(Receive(2, Output(2)));
  EXPECT_DOUBLE_EQ(Ns(world, 300, TestNetwork(2)), 2 * 100 * 10 + 50'000 + 100 + 1000);
}

TEST(LinkSharing, NothingSharesWithMessagesOfNothing) {
  LinkSharing sharing;
  sharing.Add(0, 0, 0, 0);
  sharing.Add(0, 0, 1, 100);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 0), 1);
  EXPECT_DOUBLE_EQ(sharing.Sharers(0, 0, 1), 1);
}

TEST(Simulator, ReducesOnTheReceivingEnd) {
  std::vector<Schedule> world = World({{Send(Input(0), 1)}, {Receive(0, Output(0))}});
  world[1].steps[0].kind = Step::Kind::kReceiveReduce;
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(2)), 100 + 1000 + 10 + 3 * 110);
  const Step many = ReduceMany({Input(0), Scratch(0), Scratch(1)}, Output(0));
  EXPECT_DOUBLE_EQ(Ns(World({{many}}), 400, TestNetwork(1)), 400 * 0.1 * 2);
  EXPECT_DOUBLE_EQ(Ns(World({{Copy(Input(0), Output(0))}}), 400, TestNetwork(1)), 4);
}

// In shared memory: a list of steps for each rank.
std::vector<Schedule> WorldInSharedMemory(std::vector<std::vector<Step>> steps) {
  std::vector<Schedule> schedules = World(std::move(steps));
  for (Schedule& schedule : schedules) {
    schedule.algorithm = Algorithm::kDirect;
    schedule.scratch_blocks = schedule.size;
  }
  return schedules;
}

TEST(Simulator, ABarrierIsOverWhenTheLastRankHasToldTheLast) {
  const double barrier = 2 * kLine.message_ns + kLine.latency_ns;
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{Barrier()}, {Barrier()}, {Barrier()}}), 400, TestNetwork(3)), barrier);
  // One rank comes later, another has more to do afterwards.
  const std::vector<Schedule> late = WorldInSharedMemory(
      {{Copy(Input(0), Output(0)), Barrier()}, {Barrier(), Copy(Input(0), Output(0))}, {Barrier()}});
  EXPECT_DOUBLE_EQ(Ns(late, 400, TestNetwork(3)), 4 + barrier + 4);
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{Copy(Input(0), Output(0))}, {}}), 400, TestNetwork(2)), 4);
}

TEST(Simulator, WorkInSharedMemoryIsWhatItReadsAndWrites) {
  const Step fold = ReduceInto({Input(0), Of(1, Input(0))}, Output(0), {Of(1, Output(0))});
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{fold}, {}}), 400, TestNetwork(2)), 40 + 400 * kPeerByteNs + 2);
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{Copy(Of(1, Input(0)), Output(0))}, {}}), 400, TestNetwork(2)), 4);
}

TEST(Simulator, RefusesWhatCannotBeDoneInSharedMemory) {
  EXPECT_THAT(Simulate(Collective::kAllReduce, Algorithm::kDirect, 8, 8, TestNetwork(4)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("direct is for ranks that share a host: 8 do not, with 4 on each")));
  EXPECT_THAT(Simulate(Collective::kAllReduce, Algorithm::kInline, 2, 24, TestNetwork(2)), IsOk());
  EXPECT_THAT(Simulate(Collective::kAllReduce, Algorithm::kInline, 2, 25, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 gives 25 bytes in #0 (share input[0]")));
  EXPECT_THAT(Simulate(Collective::kBroadcast, Algorithm::kInline, 2, 25, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 24")));
  EXPECT_THAT(Simulate(WorldInSharedMemory({{Barrier()}, {Barrier(), Barrier()}}), 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1 waits for ever in #1 (barrier)")));
}

TEST(Simulator, CountsWhatHostsExchange) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation ring,
                                Simulate(Collective::kAllReduce, Algorithm::kRing, 8, 800, TestNetwork(4)));
  EXPECT_DOUBLE_EQ(ring.remote_sent_bytes, 2 * 7 * 100);
  EXPECT_DOUBLE_EQ(ring.remote_received_bytes, 2 * 7 * 100);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation on_one_host,
                                Simulate(Collective::kAllReduce, Algorithm::kRing, 8, 800, TestNetwork(8)));
  EXPECT_EQ(on_one_host.remote_sent_bytes, 0);
}

TEST(Simulator, RepeatsToTheBit) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation first,
                                  Simulate(collective, Algorithm::kRing, 27, 1'000'003, TestNetwork(5)));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation second,
                                  Simulate(collective, Algorithm::kRing, 27, 1'000'003, TestNetwork(5)));
    EXPECT_EQ(first.ns, second.ns);
  }
}

TEST(Simulator, CarriesOutTheLogarithmicAlgorithmsOfThousandsOfRanks) {
  for (Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation simulation,
                                  Simulate(collective, Algorithm::kBinomial, 4096, 8, TestNetwork(8)));
    EXPECT_GT(simulation.ns, 9 * 50'000 + 3 * 1000);
    EXPECT_LT(simulation.ns, 9 * 50'200 + 3 * 1100);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation barrier,
                                Simulate(Collective::kBarrier, Algorithm::kDissemination, 4096, 0, TestNetwork(1)));
  EXPECT_DOUBLE_EQ(barrier.ns, 12 * 50'000);
}

TEST(Simulator, RefusesMessagesWithoutCounterpart) {
  EXPECT_THAT(
      Simulate(World({{Send(Input(0), 1)}, {}}), 8, TestNetwork(2)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 does not receive what rank 0 sends in #0")));
  EXPECT_THAT(
      Simulate(World({{}, {Receive(0, Output(0))}}), 8, TestNetwork(2)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 does not send what rank 1 receives in #0")));
  EXPECT_THAT(Simulate(World({{Send(Input(0, 2), 1)}, {Receive(0, Output(0))}}), 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not as long as what rank 1 receives in #0")));
  EXPECT_THAT(Simulate(World({{Send(Input(0), 7)}, {}}), 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("#0")));
}

TEST(Simulator, RefusesSchedulesThatDoNotBelongTogether) {
  std::vector<Schedule> world = World({{}, {}});
  world[1].rank = Rank(0);
  EXPECT_THAT(Simulate(world, 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("schedule 1 of 2 is that of rank 0 of 2")));
  world = World({{}, {}});
  world[1].algorithm = Algorithm::kDirect;
  EXPECT_THAT(Simulate(world, 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("all_reduce by direct")));
  EXPECT_THAT(Simulate(absl::Span<const Schedule>(), 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no schedules")));
  EXPECT_THAT(Simulate(Collective::kBroadcast, Algorithm::kDissemination, 4, 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dissemination")));
  Network network = TestNetwork(1);
  network.remote.byte_ns = -1;
  EXPECT_THAT(Simulate(World({{}, {}}), 8, network),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no negative costs")));
}

TEST(Simulator, NamesTheStepThatWaitsForEver) {
  const std::vector<Schedule> world =
      World({{Receive(1, Output(0)), Send(Output(0), 1, {0})}, {Receive(0, Output(0)), Send(Output(0), 0, {0})}});
  EXPECT_THAT(Simulate(world, 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 waits for ever"), HasSubstr("send output[0] to rank 1"))));
}

}  // namespace
}  // namespace lockstep::schedule_testing
