// The proof of all schedules that this library makes: every collective, every algorithm, in place and out of place, for
// every size up to 64 and for some up to 4096. What the verifier refuses is in verifier_test.cc.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "comm/schedule.h"
#include "comm/schedule_testing.h"
#include "comm/verifier.h"
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
// what the verifier has to look at.
TEST(ShippedSchedulesOfLargeWorlds, AreProvedToThousandsOfRanksWhereStepsAreFew) {
  const struct {
    Collective collective;
    Algorithm algorithm;
  } kCases[] = {{Collective::kAllReduce, Algorithm::kRecursiveDoubling},
                {Collective::kAllReduce, Algorithm::kChain},
                {Collective::kBroadcast, Algorithm::kBinomial},
                {Collective::kBroadcast, Algorithm::kChain},
                {Collective::kBroadcast, Algorithm::kTwoLevel},
                {Collective::kReduce, Algorithm::kBinomial},
                {Collective::kReduce, Algorithm::kRing},
                {Collective::kReduce, Algorithm::kChain},
                {Collective::kReduce, Algorithm::kOneShot},
                {Collective::kBarrier, Algorithm::kDissemination},
                {Collective::kBroadcast, Algorithm::kOnePass},
                {Collective::kBroadcast, Algorithm::kOneLine},
                {Collective::kReduce, Algorithm::kOneLine},
                {Collective::kBarrier, Algorithm::kOneLine}};
  for (const auto& [collective, algorithm] : kCases) {
    for (int size : {100, 127, 128, 255, 1000, 1024, 4096}) ExpectProved(collective, algorithm, size);
  }
}

TEST(ShippedSchedulesOfLargeWorlds, AreProvedToAThousandRanksWhereRoundsAreFew) {
  const struct {
    Collective collective;
    Algorithm algorithm;
  } kCases[] = {{Collective::kAllReduce, Algorithm::kHalvingDoubling},
                {Collective::kAllGather, Algorithm::kBruck},
                {Collective::kGather, Algorithm::kLinear},
                {Collective::kGather, Algorithm::kBinomial},
                {Collective::kScatter, Algorithm::kLinear},
                {Collective::kScatter, Algorithm::kBinomial},
                {Collective::kReduceScatter, Algorithm::kHalvingDoubling},
                {Collective::kAllReduce, Algorithm::kOnePass},
                {Collective::kAllReduce, Algorithm::kOneLine},
                {Collective::kAllReduce, Algorithm::kStaged},
                {Collective::kReduceScatter, Algorithm::kStaged},
                {Collective::kReduce, Algorithm::kOnePass},
                {Collective::kReduceScatter, Algorithm::kOnePass},
                {Collective::kGather, Algorithm::kOnePass},
                {Collective::kScatter, Algorithm::kOnePass}};
  for (const auto& [collective, algorithm] : kCases) {
    for (int size : {100, 255, 1000}) ExpectProved(collective, algorithm, size);
  }
}

TEST(ShippedSchedulesOfLargeWorlds, AreProvedToTwoThousandRanksForLongVectors) {
  LOCKSTEP_EXPECT_OK(Verify(BuildAll(Collective::kAllReduce, Algorithm::kHalvingDoubling, 2048), /*in_place=*/true));
}

// The rest: as many messages to each rank as there are ranks.
TEST(ShippedSchedulesOfLargeWorlds, AreProvedToHundredsOfRanksOtherwise) {
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      for (int size : {100, 127, 128}) ExpectProved(collective, algorithm, size);
    }
  }
}

class TwoLevelSchedules : public ::testing::TestWithParam<Collective> {};

// As many ranks on each host or as it comes, ranks in order or strewn, some hosts with one rank or as many as all others.
TEST_P(TwoLevelSchedules, AreProvedOnEveryLayoutOfHosts) {
  for (int size = 2; size <= kSizeMax; size += size < 20 ? 1 : 7) {
    for (int root :
         GetParam() == Collective::kBroadcast ? std::vector<int>{0, size / 2, size - 1} : std::vector<int>{0}) {
      for (int hosts = 1; hosts <= size; hosts += 1 + hosts / 2) {
        for (const Topology& topology :
             {Consecutive(size, (size + hosts - 1) / hosts), RoundRobin(size, hosts), Strewn(size, hosts)}) {
          ExpectProved(GetParam(), Algorithm::kTwoLevel, size, root, topology);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(TwoLevelSchedules, AreProvedForManyHosts) {
  ExpectProved(GetParam(), Algorithm::kTwoLevel, 256, 0, Consecutive(256, 8));
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
