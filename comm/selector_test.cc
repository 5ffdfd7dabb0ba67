#include "comm/selector.h"

#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

Algorithm Of(const AlgorithmOverrides& overrides, Collective collective) {
  return overrides.by_collective[static_cast<int>(collective)];
}

TEST(Selector, AllReducesSmallVectorsByRecursiveDoublingAndLargeOnesByRing) {
  for (int size : {2, 3, 4, 5, 7, 8, 13, 16, 64}) {
    SCOPED_TRACE(size);
    EXPECT_EQ(Select(Collective::kAllReduce, size, 0), Algorithm::kRecursiveDoubling);
    EXPECT_EQ(Select(Collective::kAllReduce, size, 8), Algorithm::kRecursiveDoubling);
    EXPECT_EQ(Select(Collective::kAllReduce, size, 4 * kKiB), Algorithm::kRecursiveDoubling);
    EXPECT_EQ(Select(Collective::kAllReduce, size, 25 * kMiB), Algorithm::kRing);
  }
}

TEST(Selector, ReducesSmallVectorsByTreeAndLargeOnesByChain) {
  for (int size : {4, 5, 8, 16, 64}) {
    SCOPED_TRACE(size);
    EXPECT_EQ(Select(Collective::kReduce, size, 0), Algorithm::kBinomial);
    EXPECT_EQ(Select(Collective::kReduce, size, 4 * kKiB), Algorithm::kBinomial);
    EXPECT_EQ(Select(Collective::kReduce, size, 25 * kMiB), Algorithm::kRing);
  }
}

// As the vector grows, the choice changes once: a second change would be a hole in the model.
TEST(Selector, ChangesItsMindOnceAsTheVectorGrows) {
  for (Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
    for (int size = 2; size <= 64; ++size) {
      int changes = 0;
      Algorithm previous = Select(collective, size, 0);
      for (int64_t bytes = 1; bytes <= int64_t{1} << 34; bytes += 1 + bytes / 8) {
        const Algorithm next = Select(collective, size, bytes);
        if (next != previous) ++changes;
        previous = next;
      }
      EXPECT_LE(changes, 1) << Name(collective) << ", " << size << " ranks";
    }
  }
}

TEST(Selector, ChoosesWhatCarriesOutTheCollective) {
  for (int index = 0; index < kCollectiveCount; ++index) {
    const Collective collective = static_cast<Collective>(index);
    for (int size = 1; size <= 17; ++size) {
      for (int64_t bytes : {int64_t{0}, int64_t{1}, 64 * kKiB, int64_t{1} << 50}) {
        LOCKSTEP_EXPECT_OK(BuildSchedule(collective, Select(collective, size, bytes), Rank(0), size, Rank(0)));
      }
    }
  }
}

TEST(Selector, PricesAsTheTextbookDoes) {
  const LinkCosts costs = {/*message_ns=*/1000, /*moved_byte_ns=*/1, /*reduced_byte_ns=*/0.5, /*chunk_bytes=*/80};
  const auto ns = [&](Collective collective, Algorithm algorithm, int size) {
    return EstimateNs(collective, algorithm, size, /*bytes=*/800, costs);
  };
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRing, 4), 6 * 1000 + 2 * 600 + 300);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 4), 2 * (1000 + 800 + 400));
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRecursiveDoubling, 5), 4 * (1000 + 800) + 3 * 400);
  EXPECT_DOUBLE_EQ(ns(Collective::kBroadcast, Algorithm::kBinomial, 5), 3 * (1000 + 800));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduce, Algorithm::kBinomial, 8), 3 * (1000 + 800 + 400));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduce, Algorithm::kRing, 4), 3 * 1000 + 1200 + 2 * 120);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllGather, Algorithm::kRing, 4), 3 * 1000 + 600);
  EXPECT_DOUBLE_EQ(ns(Collective::kReduceScatter, Algorithm::kRing, 4), 3 * 1000 + 600 + 300);
  EXPECT_DOUBLE_EQ(ns(Collective::kBarrier, Algorithm::kDissemination, 9), 4 * 1000);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kRing, 1), 0);
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
                       HasSubstr("recursive_doubling does not carry out broadcast; binomial does")));
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
