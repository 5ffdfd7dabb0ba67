// The proof of all schedules that this library makes: every collective, every algorithm, in place and out of place, for
// every size up to 64 and for some as large as kLargestWorlds says. What the verifier refuses is in verifier_test.cc.

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/schedule_testing.h"
#include "comm/schedule/verify/verifier.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kSizeMax = 64;

std::string Describe(Collective collective, Algorithm algorithm, int size, int root, bool in_place) {
  return Name(collective) + " by " + Name(algorithm) + ", " + std::to_string(size) + " ranks, root " +
         std::to_string(root) + (in_place ? ", in place" : "");
}

// Both ways; what is said about the order of the fold must be true of every block of every rank.
void ExpectProved(Collective collective, Algorithm algorithm, int size, int root = 0, const Topology& topology = {}) {
  const std::vector<Schedule> all = BuildAll(collective, algorithm, size, root, topology);
  for (bool in_place : {false, true}) {
    SCOPED_TRACE(Describe(collective, algorithm, size, root, in_place));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Proof proof, Prove(all, in_place));
    if (FoldsInRankOrder(collective, algorithm)) {
      ASSERT_TRUE(proof.folds_in_rank_order());
    }
    if (RoundsOnce(collective, algorithm)) {
      ASSERT_TRUE(proof.rounds_once());
    }
  }
}

// Every root up to 17 ranks; above, roots at the ends, in the middle and next to powers of two, since a schedule depends
// on its root through the distance from it, and through the end of the vector that lies between.
std::vector<int> Roots(Collective collective, int size) {
  if (!HasRoot(collective)) return {0};
  std::vector<int> roots = {0, 1, size / 2, 31, 32, size - 1};
  if (size <= 17) {
    roots.clear();
    for (int root = 0; root < size; ++root) roots.push_back(root);
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  while (roots.back() >= size) roots.pop_back();
  return roots;
}

class ShippedSchedules : public ::testing::TestWithParam<Collective> {};

TEST_P(ShippedSchedules, AreProvedForEverySizeUpTo64) {
  for (Algorithm algorithm : AlgorithmsFor(GetParam())) {
    for (int size = 1; size <= kSizeMax; ++size) {
      for (int root : Roots(GetParam(), size)) ExpectProved(GetParam(), algorithm, size, root);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, ShippedSchedules, ::testing::ValuesIn(AllCollectives()),
                         [](const auto& info) { return Name(info.param); });

// Steps of all ranks, or blocks of all ranks' vectors, grow with the square of the size for most algorithms, and so does
// what the verifier has to look at: each is proved as far as it takes seconds.
struct LargestWorld {
  Collective collective;
  Algorithm algorithm;
  int size;
};
constexpr LargestWorld kLargestWorlds[] = {
    {Collective::kAllReduce, Algorithm::kRecursiveDoubling, 4096},
    {Collective::kAllReduce, Algorithm::kChain, 4096},
    {Collective::kBroadcast, Algorithm::kBinomial, 4096},
    {Collective::kBroadcast, Algorithm::kChain, 4096},
    {Collective::kBroadcast, Algorithm::kTwoLevel, 4096},
    {Collective::kBroadcast, Algorithm::kOnePass, 4096},
    {Collective::kBroadcast, Algorithm::kOneLine, 4096},
    {Collective::kReduce, Algorithm::kBinomial, 4096},
    {Collective::kReduce, Algorithm::kRing, 4096},
    {Collective::kReduce, Algorithm::kChain, 4096},
    {Collective::kReduce, Algorithm::kOneShot, 4096},
    {Collective::kReduce, Algorithm::kOneLine, 4096},
    {Collective::kGather, Algorithm::kLinear, 4096},
    {Collective::kGather, Algorithm::kBinomial, 4096},
    {Collective::kGather, Algorithm::kOnePass, 4096},
    {Collective::kScatter, Algorithm::kLinear, 4096},
    {Collective::kScatter, Algorithm::kBinomial, 4096},
    {Collective::kScatter, Algorithm::kOnePass, 4096},
    {Collective::kBarrier, Algorithm::kDissemination, 4096},
    {Collective::kBarrier, Algorithm::kOneLine, 4096},
    {Collective::kAllReduce, Algorithm::kHalvingDoubling, 2048},
    {Collective::kAllReduce, Algorithm::kOneLine, 2048},
    {Collective::kAllReduce, Algorithm::kStaged, 2048},
    {Collective::kReduce, Algorithm::kOnePass, 2048},
    {Collective::kAllGather, Algorithm::kBruck, 2048},
    {Collective::kReduceScatter, Algorithm::kOnePass, 2048},
    {Collective::kReduceScatter, Algorithm::kHalvingDoubling, 1000},
    {Collective::kAllReduce, Algorithm::kOnePass, 1000},
    {Collective::kBroadcast, Algorithm::kScatterAllGather, 1000},
    {Collective::kAllGather, Algorithm::kRing, 1000},
    {Collective::kAllGather, Algorithm::kOneShot, 1000},
    {Collective::kAllGather, Algorithm::kTwoLevel, 1000},
    {Collective::kAllGather, Algorithm::kOnePass, 1000},
    {Collective::kAllGather, Algorithm::kOneLine, 1000},
    {Collective::kAllGather, Algorithm::kStaged, 1000},
    {Collective::kReduceScatter, Algorithm::kOneShot, 1000},
    {Collective::kReduceScatter, Algorithm::kTwoLevel, 1000},
    {Collective::kReduceScatter, Algorithm::kStaged, 1000},
    {Collective::kAllToAll, Algorithm::kPairwise, 1000},
    {Collective::kAllToAll, Algorithm::kOnePass, 1000},
    {Collective::kAllToAll, Algorithm::kStaged, 1000},
    {Collective::kAllReduce, Algorithm::kOneShot, 512},
    {Collective::kAllReduce, Algorithm::kRing, 512},
    {Collective::kAllReduce, Algorithm::kTwoShot, 512},
    {Collective::kAllReduce, Algorithm::kTwoLevel, 512},
    {Collective::kAllReduce, Algorithm::kStagedTwoShot, 512},
    {Collective::kReduceScatter, Algorithm::kRing, 512},
    {Collective::kAllToAll, Algorithm::kBruck, 255},
};

class ShippedSchedulesOfLargeWorlds : public ::testing::TestWithParam<LargestWorld> {};

// Both ways up to 255 ranks; beyond, in place, where more can go wrong. Where hosts matter they have eight ranks, the last one fewer.
TEST_P(ShippedSchedulesOfLargeWorlds, AreProved) {
  const auto [collective, algorithm, largest] = GetParam();
  const auto hosts = [algorithm = algorithm](int size) {
    return algorithm == Algorithm::kTwoLevel ? Consecutive(size, 8) : Topology();
  };
  for (const int size : {100, 127, 128, 255}) ExpectProved(collective, algorithm, size, /*root=*/0, hosts(size));
  for (const int size : {512, 1000, 2048, 4096}) {
    if (size > largest) break;
    SCOPED_TRACE(Describe(collective, algorithm, size, /*root=*/0, /*in_place=*/true));
    LOCKSTEP_EXPECT_OK(Verify(BuildAll(collective, algorithm, size, /*root=*/0, hosts(size)), /*in_place=*/true));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShippedSchedulesOfLargeWorlds, ::testing::ValuesIn(kLargestWorlds), [](const auto& info) {
  return Name(info.param.collective) + "_by_" + Name(info.param.algorithm);
});

TEST(LargestWorlds, AreKnownOfEveryAlgorithm) {
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      EXPECT_EQ(std::count_if(std::begin(kLargestWorlds), std::end(kLargestWorlds),
                              [&](const LargestWorld& world) {
                                return world.collective == collective && world.algorithm == algorithm;
                              }),
                1)
          << Name(collective) << " by " << Name(algorithm);
    }
  }
}

class TwoLevelSchedules : public ::testing::TestWithParam<Collective> {};

// As many ranks on each host, in order or dealt out, for every number of hosts that allows it; and hosts of all sizes, their ranks
// strewn over the world.
TEST_P(TwoLevelSchedules, AreProvedOnEveryLayoutOfHosts) {
  for (int size = 1; size <= kSizeMax; ++size) {
    std::vector<Topology> layouts;
    for (int hosts = 1; hosts <= size; ++hosts) {
      if (size % hosts != 0) continue;
      layouts.push_back(Consecutive(size, size / hosts));
      layouts.push_back(RoundRobin(size, hosts));
    }
    for (int hosts = 2; hosts < size; hosts += 1 + hosts / 2) layouts.push_back(Strewn(size, hosts));
    for (const Topology& layout : layouts) {
      for (const int root : Roots(GetParam(), size)) {
        ExpectProved(GetParam(), Algorithm::kTwoLevel, size, root, layout);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(TwoLevelSchedules, AreProvedForManyHosts) {
  ExpectProved(GetParam(), Algorithm::kTwoLevel, 250, 7, Strewn(250, 37));
}

INSTANTIATE_TEST_SUITE_P(Collectives, TwoLevelSchedules,
                         ::testing::Values(Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather,
                                           Collective::kReduceScatter),
                         [](const auto& info) { return Name(info.param); });

// The other side of ExpectProved: what is not said is not true either, at some size.
TEST(FoldsInRankOrder, IsSaidOfAllAlgorithmsOfWhichItIsTrue) {
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      bool folds_in_rank_order = true, rounds_once = true;
      for (int size : {3, 4, 5, 6, 9}) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(
            const Proof proof, Prove(BuildAll(collective, algorithm, size, /*root=*/1, Consecutive(size, 2)), true));
        folds_in_rank_order = folds_in_rank_order && proof.folds_in_rank_order();
        rounds_once = rounds_once && proof.rounds_once();
      }
      EXPECT_EQ(FoldsInRankOrder(collective, algorithm), folds_in_rank_order)
          << Name(collective) << " by " << Name(algorithm);
      EXPECT_EQ(RoundsOnce(collective, algorithm), rounds_once) << Name(collective) << " by " << Name(algorithm);
    }
  }
}

TEST(FoldsInRankOrder, HasAnAlgorithmForEveryReduction) {
  for (Collective collective : AllCollectives()) {
    const Algorithms known = AlgorithmsFor(collective);
    const bool some = std::any_of(known.begin(), known.end(), [&](Algorithm algorithm) {
      return FoldsInRankOrder(collective, algorithm) && RoundsOnce(collective, algorithm);
    });
    EXPECT_EQ(some, HasReduction(collective)) << Name(collective);
  }
}

}  // namespace
}  // namespace lockstep
