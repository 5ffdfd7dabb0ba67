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
constexpr double kEqual = 1e-6;

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

// Hosts of several ranks: full ones and a last one with fewer, with any numbers of both, that are faster inside than
// between each other and slower.
TEST(Prices, EqualTheSimulationOnHostsOfSeveralRanks) {
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 2), {3, 4, 5, 6, 7, 8, 12, 33, 64, 128}, Equal);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 3), {4, 5, 6, 7, 12, 15}, Equal);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 4), {5, 6, 8, 16, 22, 35, 64, 128}, Equal);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 6), {8, 12, 18, 20, 35, 36, 96}, Equal);
  ExpectSimulatedPrices(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 8), {16, 27, 64, 100}, Equal);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 48), {49, 96, 100}, Equal);
  ExpectSimulatedPrices(WithoutWorkForMessages(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 4)), {7, 16, 64}, Equal);
  ExpectSimulatedPrices(MakeNetwork(kTcpOnOneHost, {/*latency_ns=*/20'000, /*byte_ns=*/0.08, /*message_ns=*/2000}, 4),
                        {8, 32}, Equal);
}

// In a large world, estimated: messages that are cut in two at the end of the vector are left out, as are, in a tree
// followed by a ring, some of who waits for whom.
bool IsEstimatedInLargeWorlds(Collective collective, Algorithm algorithm) {
  return algorithm == Algorithm::kHalvingDoubling || algorithm == Algorithm::kBruck ||
         algorithm == Algorithm::kScatterAllGather ||
         (algorithm == Algorithm::kTwoLevel && collective == Collective::kAllReduce);
}

// Beyond 128 ranks one of the ranks, or of the hosts, stands for all.
TEST(Prices, EqualTheSimulationOfLargerWorldsUnlessEstimated) {
  const auto tolerance = [](Collective collective, Algorithm algorithm) {
    return IsEstimatedInLargeWorlds(collective, algorithm) ? 0.25 : kEqual;
  };
  ExpectSimulatedPrices(kTcpNetwork, {129, 200}, tolerance);
  ExpectSimulatedPrices(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8), {200, 205, 256}, tolerance);
  ExpectSimulatedPrices(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 6), {130, 133, 205}, tolerance);
  // Slower inside the hosts than between them: a ring's longest chain then begins elsewhere than is looked at.
  const LinkCosts fast = {/*latency_ns=*/20'000, /*byte_ns=*/0.08, /*message_ns=*/2000};
  ExpectSimulatedPrices(MakeNetwork(kLibfabricOnOneHost, fast, 8), {130, 200},
                        [&](Collective collective, Algorithm algorithm) {
                          return algorithm == Algorithm::kRing ? 0.01 : tolerance(collective, algorithm);
                        });
}

TEST(Prices, EstimatesOfLargerWorldsAreWithinATenthForManyBytes) {
  for (const auto& [network, size] :
       {std::make_pair(kTcpNetwork, 200), std::make_pair(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8), 256),
        std::make_pair(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8), 205)}) {
    for (int index = 0; index < kCollectiveCount; ++index) {
      const auto collective = static_cast<Collective>(index);
      for (Algorithm algorithm : AlgorithmsFor(collective)) {
        if (!IsEstimatedInLargeWorlds(collective, algorithm)) continue;
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation simulation,
                                      Simulate(collective, algorithm, size, 300'000, network));
        EXPECT_NEAR(PriceNs(collective, algorithm, size, 300'000, network) / simulation.ns, 1, 0.1)
            << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << network.ranks_per_host
            << " on a host";
      }
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
