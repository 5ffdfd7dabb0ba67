// The cost model beside the simulator, which carries out the same schedules chunk by chunk.

#include "comm/select/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/stage.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/schedule/verify/simulator.h"
#include "comm/select/selector.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

double CostNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network) {
  return CostModel(size, network).Ns(collective, algorithm, bytes);
}

std::vector<Schedule> Schedules(Collective collective, Algorithm algorithm, int size, const Network& network) {
  return BuildAll(collective, algorithm, size, /*root=*/0, Consecutive(size, network.ranks_per_host));
}

// Expects the cost of every algorithm that sends messages, and may be chosen by it, to be the simulator's, as far as `tolerance`
// says.
void ExpectSimulated(const Network& network, const std::vector<int>& sizes, double tolerance) {
  // Nothing, latency alone, one chunk of it all, a few, many; and what divides by nothing.
  const std::vector<int64_t> bytes = {0, 8, 4 * kKiB, 100'003, 3 * kMiB};
  for (const Collective collective : AllCollectives()) {
    for (const Algorithm algorithm : ChoicesFor(collective)) {
      if (UsesSharedMemory(algorithm)) continue;
      for (const int size : sizes) {
        CostModel model(size, network);
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Simulation> simulations,
                                      Simulate(Schedules(collective, algorithm, size, network), bytes, network));
        for (size_t i = 0; i < bytes.size(); ++i) {
          const double ns = model.Ns(collective, algorithm, bytes[i]);
          EXPECT_LE(std::abs(ns - simulations[i].ns), tolerance * std::max(1.0, simulations[i].ns))
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << network.ranks_per_host
              << " on a host, " << bytes[i] << " bytes: simulated " << simulations[i].ns << " ns, cost " << ns;
        }
      }
    }
  }
}

constexpr double kEqual = 1e-6;

TEST(CostModel, EqualsTheSimulationInSmallWorlds) {
  ExpectSimulated(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 1000), {1, 2, 3, 4, 5, 8}, kEqual);
}

TEST(CostModel, EqualsTheSimulation) {
  ExpectSimulated(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 1000), {12, 17, 32}, kEqual);
  ExpectSimulated(Crowded(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 1000), 4), {3, 8}, kEqual);
  ExpectSimulated(kTcpNetwork, {2, 3, 7, 16, 33}, kEqual);
  // Full hosts and a last one with fewer, faster inside than between each other and slower.
  ExpectSimulated(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 2), {3, 4, 7, 12}, kEqual);
  ExpectSimulated(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 6), {8, 18, 20}, kEqual);
  ExpectSimulated(MakeNetwork(kTcpOnOneHost, kTcpBetweenHosts, 8), {16, 27}, kEqual);
  ExpectSimulated(MakeNetwork(kTcpOnOneHost, {/*latency_ns=*/20'000, /*byte_ns=*/0.08, /*message_ns=*/2000}, 4),
                  {8, 32}, kEqual);
}

// What the selector takes, beside what takes the least time in the simulator: 2,706 choices.
TEST(CostModel, TheChoiceCostsHardlyMoreThanTheBest) {
  std::vector<double> losses;
  for (const LinkCosts& inside : {kSharedMemory, kTcpOnOneHost}) {
    for (const int ranks_per_host : {2, 3, 4, 6, 8}) {
      const Network network = MakeNetwork(inside, kTcpBetweenHosts, ranks_per_host);
      std::vector<int> sizes = {2 * ranks_per_host + 1, 4 * ranks_per_host - 1};
      for (const int hosts : {2, 3, 4, 6, 8, 12, 16}) {
        if (hosts * ranks_per_host <= 64) sizes.push_back(hosts * ranks_per_host);
      }
      for (const int size : sizes) {
        CostModel model(size, network);
        for (const Collective collective : AllCollectives()) {
          const std::vector<int64_t> bytes = collective == Collective::kBarrier
                                                 ? std::vector<int64_t>{0}
                                                 : std::vector<int64_t>{8, 4 * kKiB, 100'003, 3 * kMiB};
          std::vector<double> best(bytes.size(), kImpossible), chosen(bytes.size());
          for (const Algorithm algorithm : ChoicesFor(collective)) {
            if (UsesSharedMemory(algorithm)) continue;
            LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Simulation> simulations,
                                          Simulate(Schedules(collective, algorithm, size, network), bytes, network));
            for (size_t i = 0; i < bytes.size(); ++i) {
              best[i] = std::min(best[i], simulations[i].ns);
              if (Cheapest(ChoicesFor(collective), collective, bytes[i], &model) == algorithm) {
                chosen[i] = simulations[i].ns;
              }
            }
          }
          for (size_t i = 0; i < bytes.size(); ++i) losses.push_back(chosen[i] / best[i] - 1);
        }
      }
    }
  }
  std::sort(losses.begin(), losses.end());
  EXPECT_EQ(losses.size(), 2706);
  EXPECT_LE(losses[losses.size() * 99 / 100], 0.05);
  EXPECT_LE(losses.back(), 0.3);
}

// Three smaller worlds stand for a large one.
TEST(CostModel, IsCloseInWorldsThatAreTooLargeToFollow) {
  for (const auto& [network, size] :
       {std::make_pair(kTcpNetwork, 200), std::make_pair(MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8), 256)}) {
    for (const Collective collective : AllCollectives()) {
      for (const Algorithm algorithm : ChoicesFor(collective)) {
        if (UsesSharedMemory(algorithm)) continue;
        for (const int64_t bytes : {int64_t{8}, int64_t{300'000}}) {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Simulation simulation,
                                        Simulate(collective, algorithm, size, bytes, network));
          EXPECT_NEAR(CostNs(collective, algorithm, size, bytes, network) / simulation.ns, 1, 0.3)
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << network.ranks_per_host
              << " on a host, " << bytes << " bytes";
        }
      }
    }
  }
}

// By hand, with one chunk: the formulas of the literature.
TEST(CostModel, IsTheTextbooksWithoutChunks) {
  Network network;
  network.remote = {/*latency_ns=*/1000, /*byte_ns=*/1};
  network.reduced_byte_ns = 0.5;
  network.chunk_bytes = int64_t{1} << 40;
  const auto ns = [&](Collective collective, Algorithm algorithm, int size) {
    return CostNs(collective, algorithm, size, /*bytes=*/800, network);
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

// Everything that may be chosen has a cost, in worlds that nobody simulates too.
TEST(CostModel, GoesOnToThousandsOfRanks) {
  for (const Network& network : {kTcpNetwork, MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8)}) {
    for (const int size : {1000, 4096}) {
      CostModel model(size, network);
      for (const Collective collective : AllCollectives()) {
        for (const Algorithm algorithm : ChoicesFor(collective)) {
          if (UsesSharedMemory(algorithm)) continue;
          const double small = model.Ns(collective, algorithm, 8);
          const double large = model.Ns(collective, algorithm, int64_t{1} << 33);
          EXPECT_TRUE(small > 0 && small <= large && large < 1e18)
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks: " << small << ", " << large;
        }
      }
    }
  }
  EXPECT_EQ(CostNs(Collective::kBroadcast, Algorithm::kPairwise, 4, 8, kTcpNetwork), kImpossible);
}

constexpr Network kOneHost = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/128);

TEST(CostModel, InSharedMemoryEqualsTheSimulation) {
  int possible = 0;
  for (const Collective collective : AllCollectives()) {
    for (const Algorithm algorithm : ChoicesFor(collective)) {
      if (!UsesSharedMemory(algorithm)) continue;
      for (const int size : {2, 3, 4, 5, 8, 17, 64}) {
        const std::vector<Schedule> schedules = BuildAll(collective, algorithm, size);
        for (const int64_t bytes : {int64_t{0}, int64_t{8}, int64_t{24}, int64_t{25}, int64_t{100'003}, 3 * kMiB}) {
          const double ns = CostNs(collective, algorithm, size, bytes, kOneHost);
          const absl::StatusOr<Simulation> simulation = Simulate(schedules, bytes, kOneHost);
          if (ns == kImpossible) {
            EXPECT_THAT(simulation, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 24 can be given")));
            continue;
          }
          ++possible;
          LOCKSTEP_ASSERT_OK(simulation);
          EXPECT_NEAR(simulation->ns, ns, 1e-9 * ns)
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << bytes << " bytes";
        }
      }
    }
  }
  EXPECT_GT(possible, 7 * 8 * 6);
}

// By hand: barriers, and what every rank does.
TEST(CostModel, InSharedMemoryIsBarriersAndBytes) {
  const auto ns = [](Collective collective, Algorithm algorithm, int64_t bytes) {
    return CostNs(collective, algorithm, /*size=*/4, bytes, kOneHost);
  };
  const double barrier = BarrierNs(4), fold = 3 * (kReducedByteNs + kPeerByteNs), copy = kCopiedByteNs,
               write = copy / 2;
  EXPECT_DOUBLE_EQ(barrier, 3 * kLine.message_ns + kLine.latency_ns);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kDirect, 4000), 2 * barrier + 1000 * (fold + 3 * write));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduceScatter, Algorithm::kDirect, 4000), 2 * barrier + 1000 * fold);
  EXPECT_DOUBLE_EQ(ns(Collective::kBroadcast, Algorithm::kDirect, 4000), 2 * barrier + 4000 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kInline, 24), barrier + 24 * 3 * kReducedByteNs);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllGather, Algorithm::kInline, 96), barrier + 96 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kBarrier, Algorithm::kInline, 0), barrier);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kStaged, 4000), barrier + 4000 * (copy + fold));
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kStagedTwoShot, 4000),
                   2 * barrier + 1000 * (3 * copy + fold + write + 3 * copy));
  // A barrier more for each further piece of a block.
  const int64_t piece = StagePieceBytes(4);
  const double byte_ns = (fold + 6 * copy + write) / 4;
  EXPECT_NEAR(ns(Collective::kAllReduce, Algorithm::kStagedTwoShot, 400 * piece),
              101 * barrier + static_cast<double>(400 * piece) * byte_ns, 1e-3);
}

TEST(CostModel, InSharedMemoryIsForOneHostAndForWhatASlotHolds) {
  const auto ns = [](Collective collective, Algorithm algorithm, int64_t bytes, int ranks_per_host) {
    return CostNs(collective, algorithm, /*size=*/8, bytes,
                  MakeNetwork(kSharedMemory, kTcpBetweenHosts, ranks_per_host));
  };
  EXPECT_LT(ns(Collective::kAllReduce, Algorithm::kDirect, 1 << 20, 8), kImpossible);
  EXPECT_EQ(ns(Collective::kAllReduce, Algorithm::kDirect, 1 << 20, 7), kImpossible);
  EXPECT_EQ(ns(Collective::kBarrier, Algorithm::kInline, 0, 4), kImpossible);
  EXPECT_LT(ns(Collective::kAllReduce, Algorithm::kInline, kShareBytesMax, 8), kImpossible);
  EXPECT_EQ(ns(Collective::kAllReduce, Algorithm::kInline, kShareBytesMax + 1, 8), kImpossible);
  EXPECT_LT(ns(Collective::kAllGather, Algorithm::kInline, 8 * kShareBytesMax, 8), kImpossible);
  EXPECT_EQ(ns(Collective::kAllGather, Algorithm::kInline, 8 * kShareBytesMax + 1, 8), kImpossible);
}

}  // namespace
}  // namespace lockstep
