#include "comm/prices.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/link_costs.h"
#include "comm/schedule.h"
#include "comm/simulator.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
// Nothing, latency alone, one chunk of it all, a few, many; and what divides by nothing.
constexpr int64_t kSizes[] = {0, 8, 4 * kKiB, 100'003, 300'000, 3 * kMiB};
constexpr double kEqual = 1e-6, kLargeTolerance = 0.1;

std::vector<Schedule> Schedules(Collective collective, Algorithm algorithm, int size, const Network& network) {
  Topology topology;
  for (int rank = 0; rank < size; ++rank) topology.host_of_rank.push_back(network.HostOf(rank));
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) {
    const auto schedule = BuildSchedule(collective, algorithm, Rank(rank), size, Rank(0), topology);
    EXPECT_THAT(schedule, IsOk());
    if (!schedule.ok()) return {};
    schedules.push_back(*schedule);
  }
  return schedules;
}

// Expects the prices of every algorithm that sends messages to be the simulator's, as far as
// `tolerance(collective, algorithm)` says.
template <typename Tolerance>
void ExpectSimulatedPrices(const Network& network, const std::vector<int>& sizes, Tolerance tolerance) {
  for (int index = 0; index < kCollectiveCount; ++index) {
    const auto collective = static_cast<Collective>(index);
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      if (IsByMemory(algorithm)) continue;
      for (int size : sizes) {
        const std::vector<Schedule> schedules = Schedules(collective, algorithm, size, network);
        double messages = 0;
        for (const Schedule& schedule : schedules) messages += static_cast<double>(schedule.steps.size());
        std::vector<int64_t> bytes(std::begin(kSizes), std::end(kSizes));
        if (collective == Collective::kBarrier) bytes = {0};
        // Seconds, rather than minutes.
        if (messages > 10'000) bytes = {0, 100'003, 300'000};
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Simulation> simulations, Simulate(schedules, bytes, network));
        for (size_t i = 0; i < bytes.size(); ++i) {
          const double simulated = simulations[i].ns;
          const double price = PriceNs(collective, algorithm, size, bytes[i], network);
          const double error = std::abs(price - simulated) / std::max(1.0, simulated);
          EXPECT_LE(error, tolerance(collective, algorithm))
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << network.ranks_per_host
              << " on a host, " << bytes[i] << " bytes: simulated " << simulated << " ns, priced " << price;
        }
      }
    }
  }
}

const std::vector<int>& UpTo128() {
  static const auto& sizes = *new std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 64, 100, 128};
  return sizes;
}

Network WithoutWorkForMessages(Network network) {
  network.local.message_ns = 0;
  network.remote.message_ns = 0;
  return network;
}

double Equal(Collective, Algorithm) { return kEqual; }

// One kind of link, with the ends' work for each message and without.
TEST(Prices, EqualTheSimulationOnOneHost) {
  ExpectSimulatedPrices(WithoutWorkForMessages(MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/1000)),
                        UpTo128(), Equal);
  ExpectSimulatedPrices(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, /*ranks_per_host=*/1000), UpTo128(), Equal);
  for (const double ranks_per_core : {1.5, 4.0}) {
    ExpectSimulatedPrices(
        Crowded(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, /*ranks_per_host=*/1000), ranks_per_core), {3, 4, 8, 12},
        Equal);
  }
}

TEST(Prices, EqualTheSimulationWithOneRankOnEachHost) {
  ExpectSimulatedPrices(WithoutWorkForMessages(kTcpNetwork), UpTo128(), Equal);
  ExpectSimulatedPrices(kTcpNetwork, UpTo128(), Equal);
}

// On hosts of several ranks, a price takes the average of the sharers of a host's link for the whole of a message, and
// leaves out that a link is free while its senders work on the next message or wait for the next chunk. That shows where
// ranks of a host begin a round at different times. Two algorithms have further reasons: a ring that is slower inside
// the hosts has more chains of events than are looked at, and the second half of two_shot begins chunk by chunk.
double ToleranceOfHosts(Collective collective, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kTwoShot:
      return 0.06;
    case Algorithm::kRing:
      return collective == Collective::kReduce ? kEqual : 0.04;
    case Algorithm::kBinomial:
      return collective == Collective::kReduce || collective == Collective::kGather ? 0.04 : kEqual;
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kHalvingDoubling:
    case Algorithm::kBruck:
      return 0.03;
    case Algorithm::kOneShot:
      return collective == Collective::kReduce ? kEqual : 0.02;
    case Algorithm::kPairwise:
      return 0.02;
    case Algorithm::kTwoLevel:
      return collective == Collective::kAllReduce ? 0.01 : kEqual;
    default:
      return kEqual;
  }
}

// Hosts, and ranks on them, that are powers of two.
TEST(Prices, EqualTheSimulationOnEqualHosts) {
  const auto tolerance = [](Collective, Algorithm algorithm) { return algorithm == Algorithm::kTwoShot ? 0.01 : 1e-3; };
  ExpectSimulatedPrices(WithoutWorkForMessages(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 4)), {4, 8, 16, 64, 128},
                        tolerance);
  ExpectSimulatedPrices(WithoutWorkForMessages(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 8)), {16, 64}, tolerance);
}

// And with the ends' work for each message, others, a last host with fewer ranks, and hosts that are slower inside than
// between each other.
TEST(Prices, AreWithinAFewPercentOfTheSimulationOnAllHosts) {
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 4), {5, 6, 8, 16, 22, 35, 64, 128},
                        ToleranceOfHosts);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 3), {6, 7, 12, 15}, ToleranceOfHosts);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 6), {8, 12, 18, 20, 35, 36, 96}, ToleranceOfHosts);
  ExpectSimulatedPrices(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 8), {16, 27, 64, 100}, ToleranceOfHosts);
  ExpectSimulatedPrices(MakeNetwork(kTcpOnOneHost, {/*latency_ns=*/20'000, /*byte_ns=*/0.08, /*message_ns=*/2000}, 4),
                        {8, 32}, ToleranceOfHosts);
}

// Beyond 128 ranks, too, as long as simulating them takes seconds: one of the ranks, or of the hosts, stands for all.
TEST(Prices, AreWithinAFewPercentOfTheSimulationOfLargerWorlds) {
  const struct {
    Collective collective;
    Algorithm algorithm;
  } kCases[] = {{Collective::kAllReduce, Algorithm::kRecursiveDoubling},
                {Collective::kAllReduce, Algorithm::kHalvingDoubling},
                {Collective::kAllReduce, Algorithm::kTwoLevel},
                {Collective::kBroadcast, Algorithm::kTwoLevel},
                {Collective::kAllGather, Algorithm::kBruck},
                {Collective::kAllGather, Algorithm::kTwoLevel},
                {Collective::kReduceScatter, Algorithm::kTwoLevel}};
  for (const auto& [network, size] :
       {std::make_pair(kTcpNetwork, 200), std::make_pair(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8), 256),
        std::make_pair(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8), 205)}) {
    for (const auto& [collective, algorithm] : kCases) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation simulation,
                                    Simulate(collective, algorithm, size, 300'000, network));
      EXPECT_NEAR(PriceNs(collective, algorithm, size, 300'000, network) / simulation.ns, 1, kLargeTolerance)
          << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << network.ranks_per_host
          << " on a host";
    }
  }
}

// By hand, with one chunk: the formulas of the literature.
TEST(Prices, AreTheTextbooksWithoutChunks) {
  Network network;
  network.remote = {/*latency_ns=*/1000, /*byte_ns=*/1};
  network.reduced_byte_ns = 0.5;
  network.chunk_bytes = int64_t{1} << 40;
  const auto ns = [&](Collective collective, Algorithm algorithm, int size) {
    return PriceNs(collective, algorithm, size, /*bytes=*/800, network);
  };
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRing, 4), 6 * 1000 + 2 * 600 + 300);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kHalvingDoubling, 8), 6 * 1000 + 2 * 700 + 350);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 4), 2 * (1000 + 800 + 400));
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kOneShot, 5), 1000 + 4 * 800 + 4 * 400);
  EXPECT_DOUBLE_EQ(ns(Collective::kBroadcast, Algorithm::kBinomial, 8), 3 * (1000 + 800));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduce, Algorithm::kBinomial, 8), 3 * (1000 + 800 + 400));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduceScatter, Algorithm::kRing, 4), 3 * 1000 + 600 + 300);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllToAll, Algorithm::kPairwise, 4), 1000 + 600);
  EXPECT_DOUBLE_EQ(ns(Collective::kBarrier, Algorithm::kDissemination, 9), 4 * 1000);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRing, 1), 0);
}

// Everything that is shipped has a price, in worlds that nobody simulates too.
TEST(Prices, GoOnToThousandsOfRanks) {
  for (const Network& network : {kTcpNetwork, MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8),
                                 MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 48)}) {
    for (int index = 0; index < kCollectiveCount; ++index) {
      const auto collective = static_cast<Collective>(index);
      for (Algorithm algorithm : AlgorithmsFor(collective)) {
        if (IsByMemory(algorithm)) continue;
        for (int size : {1000, 4096, 10'000}) {
          const double small = PriceNs(collective, algorithm, size, 8, network);
          const double large = PriceNs(collective, algorithm, size, int64_t{1} << 33, network);
          EXPECT_TRUE(small > 0 && small <= large && large < 1e18)
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks: " << small << ", " << large;
        }
      }
    }
  }
  EXPECT_EQ(PriceNs(Collective::kBroadcast, Algorithm::kPairwise, 4, 8, kTcpNetwork),
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace lockstep
