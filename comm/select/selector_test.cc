#include "comm/select/selector.h"

#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "comm/select/cost_model.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

Algorithm Of(const AlgorithmOverrides& overrides, Collective collective) {
  return overrides.by_collective[static_cast<int>(collective)];
}

TEST(Selector, TakesTheCheapest) {
  for (int index = 0; index < kCollectiveCount; ++index) {
    const Collective collective = static_cast<Collective>(index);
    for (int size : {1, 2, 3, 8, 17, 64, 4096}) {
      for (int64_t bytes : {int64_t{0}, int64_t{8}, 64 * kKiB, 25 * kMiB}) {
        CostModel model(size, kTcpNetwork);
        const double chosen = model.Ns(collective, Select(collective, size, bytes), bytes);
        for (Algorithm algorithm : ChoicesFor(collective)) {
          EXPECT_LE(chosen, 1.01 * model.Ns(collective, algorithm, bytes))
              << Name(algorithm) << " " << Name(collective) << ", " << size << " ranks, " << bytes << " bytes";
        }
      }
    }
  }
}

// Small vectors: few rounds, and in large worlds few messages too.
TEST(Selector, AllReducesSmallVectorsInFewRounds) {
  for (int size : {3, 4, 5}) EXPECT_EQ(Select(Collective::kAllReduce, size, 8), Algorithm::kOneShot) << size;
  for (int size : {256, 1024, 4096}) {
    EXPECT_EQ(Select(Collective::kAllReduce, size, 8), Algorithm::kRecursiveDoubling) << size;
  }
}

// Large ones: no byte more often than it has to.
TEST(Selector, AllReducesLargeVectorsWithFewBytes) {
  for (int size : {2, 3, 4, 8, 13, 64}) {
    const Algorithm chosen = Select(Collective::kAllReduce, size, 64 * kMiB);
    EXPECT_TRUE(chosen == Algorithm::kRing || chosen == Algorithm::kTwoShot || chosen == Algorithm::kHalvingDoubling ||
                chosen == Algorithm::kTwoLevel)
        << size << " ranks: " << Name(chosen);
  }
}

TEST(Selector, CrossesBetweenHostsOnceForEachHost) {
  const Network hosts = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/8);
  EXPECT_EQ(Select(Collective::kAllReduce, 64, 25 * kMiB, {}, hosts), Algorithm::kTwoLevel);
  EXPECT_EQ(Select(Collective::kBroadcast, 36, 8, {}, MakeNetwork(kSharedMemory, kTcpBetweenHosts, 6)),
            Algorithm::kTwoLevel);
}

TEST(Selector, ReducesLargeVectorsAlongAChain) {
  for (int size : {8, 16, 64}) EXPECT_EQ(Select(Collective::kReduce, size, 64 * kMiB), Algorithm::kRing) << size;
}

// Every algorithm has one range of sizes: coming back to it would be a hole in the model.
TEST(Selector, DoesNotComeBackToAnAlgorithm) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast}) {
    for (int size : {2, 3, 4, 8, 16, 17, 64, 1000}) {
      std::vector<Algorithm> chosen;
      for (int shift = 0; shift <= 34; ++shift) {
        const Algorithm next = Select(collective, size, int64_t{1} << shift);
        if (chosen.empty() || chosen.back() != next) chosen.push_back(next);
      }
      EXPECT_EQ(std::set<Algorithm>(chosen.begin(), chosen.end()).size(), chosen.size())
          << Name(collective) << ", " << size << " ranks";
    }
  }
}

TEST(Cheapest, IsOneOfTheCandidates) {
  const Collective collective = Collective::kAllReduce;
  CostModel eight(8, kTcpNetwork), one(1, kTcpNetwork);
  for (int64_t bytes : {int64_t{8}, int64_t{25 * kMiB}}) {
    EXPECT_EQ(Cheapest({Algorithm::kChain}, collective, bytes, &eight), Algorithm::kChain);
    EXPECT_EQ(Cheapest(ChoicesFor(collective), collective, bytes, &eight), Select(collective, 8, bytes));
  }
  const Algorithm candidates[] = {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kChain};
  EXPECT_EQ(Cheapest(candidates, collective, 64 * kMiB, &eight), Algorithm::kTwoShot);
  // Equal costs: the first.
  EXPECT_EQ(Cheapest({Algorithm::kTwoShot, Algorithm::kRing}, collective, 8, &one), Algorithm::kTwoShot);
  EXPECT_EQ(Cheapest({Algorithm::kRing, Algorithm::kTwoShot}, collective, 8, &one), Algorithm::kRing);
}

// Ranks are dealt out to 8 hosts in turn: each hop of a ring leaves its host, and 8 of them share the way out.
TEST(Select, TakesTwoLevelsWhereTheRanksOfHostsAreInterleaved) {
  Network network = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/8);
  const auto ring_ns = [&] { return CostModel(64, network).Ns(Collective::kAllReduce, Algorithm::kRing, 256 * kMiB); };
  const auto two_level_ns = [&] {
    return CostModel(64, network).Ns(Collective::kAllReduce, Algorithm::kTwoLevel, 256 * kMiB);
  };
  const double by_host = ring_ns();
  const double two_levels = two_level_ns();
  network.interleaved = true;
  EXPECT_NEAR(ring_ns() / by_host, 8, 1);
  EXPECT_EQ(two_level_ns(), two_levels);
  EXPECT_EQ(Select(Collective::kAllReduce, 64, 256 * kMiB, {}, network), Algorithm::kTwoLevel);
  EXPECT_EQ(Select(Collective::kAllGather, 64, 256 * kMiB, {}, network), Algorithm::kTwoLevel);
  EXPECT_EQ(Select(Collective::kAllReduce, 8, 8, {}, network),
            Select(Collective::kAllReduce, 8, 8, {}, MakeNetwork(kSharedMemory, kTcpBetweenHosts, 8)))
      << "on one host there is nothing to interleave";
}

TEST(AlgorithmOverrides, AreEmptyForNothing) {
  for (const char* text : {"", "  ", "auto", "all_reduce:auto"}) {
    EXPECT_THAT(ParseAlgorithmOverrides(text), IsOkAndHolds(AlgorithmOverrides{})) << text;
  }
  EXPECT_EQ(ToString(AlgorithmOverrides{}), "");
}

TEST(AlgorithmOverrides, OfOneNameAreForEveryCollectiveThatItCarriesOut) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const AlgorithmOverrides overrides, ParseAlgorithmOverrides("ring"));
  EXPECT_EQ(ToString(overrides), "all_reduce:ring;reduce:ring;all_gather:ring;reduce_scatter:ring");
  EXPECT_EQ(Of(overrides, Collective::kBroadcast), Algorithm::kAuto);
  EXPECT_EQ(Select(Collective::kAllReduce, 4, 8, overrides), Algorithm::kRing);
  EXPECT_EQ(Select(Collective::kBroadcast, 4, 8, overrides), Algorithm::kBinomial);
}

TEST(AlgorithmOverrides, OfEntriesAreForTheCollectivesNamed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const AlgorithmOverrides overrides,
                                ParseAlgorithmOverrides(" all_reduce : recursive_doubling ;reduce:ring"));
  EXPECT_EQ(ToString(overrides), "all_reduce:recursive_doubling;reduce:ring");
  EXPECT_EQ(Select(Collective::kAllReduce, 4, 25 * kMiB, overrides), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(Select(Collective::kReduce, 4, 8, overrides), Algorithm::kRing);
  EXPECT_THAT(ParseAlgorithmOverrides(ToString(overrides)), IsOkAndHolds(overrides));
}

TEST(AlgorithmOverrides, RefuseUnknownNamesAndListTheKnownOnes) {
  EXPECT_THAT(ParseAlgorithmOverrides("rign"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("overrides 'rign'"), HasSubstr("unknown algorithm 'rign'"),
                             HasSubstr("auto, ring, recursive_doubling, binomial, dissemination"))));
  EXPECT_THAT(ParseAlgorithmOverrides("all_reduce:ringg"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown algorithm 'ringg'")));
  EXPECT_THAT(ParseAlgorithmOverrides("allreduce:ring"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("unknown collective 'allreduce'"),
                             HasSubstr("all_reduce, broadcast, reduce, all_gather, reduce_scatter, barrier"))));
}

TEST(AlgorithmOverrides, RefuseAnAlgorithmThatCannotCarryOutItsCollective) {
  EXPECT_THAT(ParseAlgorithmOverrides("reduce:ring;broadcast:recursive_doubling"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("recursive_doubling does not carry out broadcast; known are binomial, chain, ")));
}

TEST(AlgorithmOverrides, RefuseWhatIsNotInTheGrammar) {
  for (const char* text : {"ring;reduce:ring", "reduce:ring;", ";", "reduce:ring:ring", "reduce:ring,barrier:auto:"}) {
    EXPECT_THAT(ParseAlgorithmOverrides(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not collective:algorithm")))
        << text;
  }
  EXPECT_THAT(ParseAlgorithmOverrides(":"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown collective ''")));
  EXPECT_THAT(ParseAlgorithmOverrides("reduce:ring;reduce:auto"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("reduce is named twice")));
}

}  // namespace
}  // namespace lockstep
