#include "comm/schedule/verify/simulator.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/select/barrier_costs.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
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

constexpr Operand kInput = {Window::kInput, 0, 1}, kOutput = {Window::kOutput, 0, 1};

Step Send(int peer, Operand source, Step::After after = {}) {
  Step step;
  step.kind = Step::Kind::kSend;
  step.peer = Rank(peer);
  step.source = source;
  step.after = after;
  return step;
}

Step Receive(int peer, Operand target, Step::After after = {}) {
  Step step;
  step.kind = Step::Kind::kReceive;
  step.peer = Rank(peer);
  step.target = target;
  step.after = after;
  return step;
}

// One block, a list of steps for each rank.
std::vector<Schedule> World(std::vector<std::vector<Step>> steps) {
  std::vector<Schedule> schedules(steps.size());
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    schedules[rank].collective = Collective::kAllReduce;
    schedules[rank].algorithm = Algorithm::kRing;
    schedules[rank].rank = Rank(static_cast<int>(rank));
    schedules[rank].size = static_cast<int>(steps.size());
    schedules[rank].blocks = 1;
    schedules[rank].steps = std::move(steps[rank]);
  }
  return schedules;
}

double Ns(const std::vector<Schedule>& schedules, int64_t bytes, const Network& network) {
  const absl::StatusOr<Simulation> simulation = Simulate(schedules, bytes, network);
  EXPECT_THAT(simulation, IsOk());
  return simulation.ok() ? simulation->ns : -1;
}

TEST(Simulator, AMessageTakesItsBytesAndTheLatency) {
  const std::vector<Schedule> world = World({{Send(1, kInput)}, {Receive(0, kOutput)}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(2)), 400 + 1000);
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(1)), 4000 + 50'000);
  EXPECT_DOUBLE_EQ(Ns(world, 0, TestNetwork(2)), 1000);
}

TEST(Simulator, EitherEndWorksForEveryChunk) {
  Network network = TestNetwork(2);
  network.local.message_ns = 30;
  const std::vector<Schedule> world = World({{Send(1, kInput)}, {Receive(0, kOutput)}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, network), 4 * 130 + 1000);
  network.remote.message_ns = 50;
  network.ranks_per_host = 1;
  EXPECT_DOUBLE_EQ(Ns(world, 400, network), 4 * 1050 + 50'000);
}

TEST(Simulator, PassesChunksOnBeforeTheMessageIsWhole) {
  const std::vector<Schedule> world =
      World({{Send(1, kInput)}, {Receive(0, kOutput), Send(2, kOutput, {0})}, {Receive(1, kOutput)}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(3)), 2 * (100 + 1000) + 300);
}

TEST(Simulator, WaitsForTheWholeOfAnotherOperand) {
  // What is sent on is not the block that arrives, so all of it has to be there.
  const std::vector<Schedule> world =
      World({{Send(1, kInput)}, {Receive(0, kOutput), Send(2, {Window::kScratch, 0, 1}, {0})}, {Receive(1, kOutput)}});
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(3)), 2 * (400 + 1000));
}

TEST(Simulator, ARankSendsOneAfterTheOtherAndReceivesOneAfterTheOther) {
  const std::vector<Schedule> out =
      World({{Send(1, kInput), Send(2, kInput)}, {Receive(0, kOutput)}, {Receive(0, kOutput)}});
  EXPECT_DOUBLE_EQ(Ns(out, 400, TestNetwork(3)), 2 * 400 + 1000);
  const std::vector<Schedule> in =
      World({{Receive(1, kOutput), Receive(2, kOutput, {0})}, {Send(0, kInput)}, {Send(0, kInput)}});
  EXPECT_DOUBLE_EQ(Ns(in, 400, TestNetwork(3)), 400 + 1000 + 400);
}

TEST(Simulator, RanksOfAHostShareItsLink) {
  const std::vector<Schedule> both =
      World({{Send(2, kInput)}, {Send(3, kInput)}, {Receive(0, kOutput)}, {Receive(1, kOutput)}});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation shared, Simulate(both, 400, TestNetwork(2)));
  EXPECT_NEAR(shared.ns, 2 * 4000 + 50'000, 1e-6);
  EXPECT_DOUBLE_EQ(shared.remote_sent_bytes, 800);
  EXPECT_DOUBLE_EQ(shared.remote_received_bytes, 800);
  // In another round, it has the link to itself.
  std::vector<Schedule> apart = both;
  apart[1].steps[0].round = 1;
  EXPECT_DOUBLE_EQ(Ns(apart, 400, TestNetwork(2)), 4000 + 50'000);
  // A rank that has nothing to send leaves the link to the other.
  const std::vector<Schedule> one = World({{Send(2, kInput)}, {}, {Receive(0, kOutput)}, {}});
  EXPECT_NEAR(Ns(one, 400, TestNetwork(2)), 4000 + 50'000, 1e-6);
  // Inside a host there is nothing to share.
  const std::vector<Schedule> inside =
      World({{Send(1, kInput)}, {Receive(0, kOutput)}, {Send(3, kInput)}, {Receive(2, kOutput)}});
  EXPECT_DOUBLE_EQ(Ns(inside, 400, TestNetwork(2)), 400 + 1000);
}

TEST(Simulator, AShortMessageLeavesASharedLinkBeforeALongOne) {
  // One block of three to rank 2, two to rank 3.
  std::vector<Schedule> world = World({{Send(2, {Window::kInput, 0, 1})},
                                       {Send(3, {Window::kInput, 0, 2})},
                                       {Receive(0, {Window::kOutput, 0, 1})},
                                       {Receive(1, {Window::kOutput, 0, 2})}});
  for (Schedule& schedule : world) schedule.blocks = 3;
  EXPECT_DOUBLE_EQ(Ns(world, 300, TestNetwork(2)), (100 + 200) * 10 + 50'000);
  // The same in two messages of the round.
  std::vector<Schedule> two = world;
  two[1].steps = {Send(3, {Window::kInput, 0, 1}), Send(3, {Window::kInput, 1, 1})};
  two[3].steps = {Receive(1, {Window::kOutput, 0, 1}), Receive(1, {Window::kOutput, 1, 1})};
  EXPECT_DOUBLE_EQ(Ns(two, 300, TestNetwork(2)), (100 + 200) * 10 + 50'000);
  // The short one, passed on inside the host, is there when both have had their share of 100 bytes.
  world[2].steps.push_back(Send(3, {Window::kOutput, 0, 1}, {0}));
  world[3].steps.push_back(Receive(2, {Window::kOutput, 2, 1}));
  EXPECT_DOUBLE_EQ(Ns(world, 300, TestNetwork(2)), 2 * 100 * 10 + 50'000 + 100 + 1000);
}

TEST(Simulator, ReducesOnTheReceivingEnd) {
  std::vector<Schedule> world = World({{Send(1, kInput)}, {Receive(0, kOutput)}});
  world[1].steps[0].kind = Step::Kind::kReceiveReduce;
  EXPECT_DOUBLE_EQ(Ns(world, 400, TestNetwork(2)), 100 + 1000 + 10 + 3 * 110);
  Step many;
  many.kind = Step::Kind::kReduceMany;
  many.target = kOutput;
  many.terms = {kInput, {Window::kScratch, 0, 1}, {Window::kScratch, 1, 1}};
  EXPECT_DOUBLE_EQ(Ns(World({{many}}), 400, TestNetwork(1)), 400 * 0.1 * 2);
  Step copy;
  copy.source = kInput;
  copy.target = kOutput;
  EXPECT_DOUBLE_EQ(Ns(World({{copy}}), 400, TestNetwork(1)), 4);
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

Step Barrier() {
  Step step;
  step.kind = Step::Kind::kBarrier;
  step.source.blocks = 0;
  return step;
}

Step Copy(Operand source, Operand target) {
  Step step;
  step.source = source;
  step.target = target;
  return step;
}

TEST(Simulator, ABarrierIsOverWhenTheLastRankHasToldTheLast) {
  const double barrier = 2 * kLine.message_ns + kLine.latency_ns;
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{Barrier()}, {Barrier()}, {Barrier()}}), 400, TestNetwork(3)), barrier);
  // One rank comes later, another has more to do afterwards.
  const std::vector<Schedule> late =
      WorldInSharedMemory({{Copy(kInput, kOutput), Barrier()}, {Barrier(), Copy(kInput, kOutput)}, {Barrier()}});
  EXPECT_DOUBLE_EQ(Ns(late, 400, TestNetwork(3)), 4 + barrier + 4);
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{Copy(kInput, kOutput)}, {}}), 400, TestNetwork(2)), 4);
}

TEST(Simulator, WorkInSharedMemoryIsWhatItReadsAndWrites) {
  Operand peers_input = kInput, peers_output = kOutput;
  peers_input.rank = 1;
  peers_output.rank = 1;
  Step fold;
  fold.kind = Step::Kind::kReduceMany;
  fold.target = kOutput;
  fold.terms = {kInput, peers_input};
  fold.more_targets = {peers_output};
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{fold}, {}}), 400, TestNetwork(2)), 40 + 2);
  EXPECT_DOUBLE_EQ(Ns(WorldInSharedMemory({{Copy(peers_input, kOutput)}, {}}), 400, TestNetwork(2)), 4);
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
      Simulate(World({{Send(1, kInput)}, {}}), 8, TestNetwork(2)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 does not receive what rank 0 sends in #0")));
  EXPECT_THAT(
      Simulate(World({{}, {Receive(0, kOutput)}}), 8, TestNetwork(2)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 0 does not send what rank 1 receives in #0")));
  EXPECT_THAT(Simulate(World({{Send(1, {Window::kInput, 0, 2})}, {Receive(0, kOutput)}}), 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not as long as what rank 1 receives in #0")));
  EXPECT_THAT(Simulate(World({{Send(7, kInput)}, {}}), 8, TestNetwork(2)),
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
      World({{Receive(1, kOutput), Send(1, kOutput, {0})}, {Receive(0, kOutput), Send(0, kOutput, {0})}});
  EXPECT_THAT(Simulate(world, 8, TestNetwork(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 waits for ever"), HasSubstr("send output[0] to rank 1"))));
}

}  // namespace
}  // namespace lockstep
