#include "reducer/buffers/batch_statistics.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "comm/host/self_communicator.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep::testing {
namespace {

// By channel, the elements of one rank.
using Elements = std::vector<std::vector<float>>;

// Means and variances as an embedder computes them.
struct Local {
  explicit Local(const Elements& elements) : count(elements[0].size()) {
    for (const std::vector<float>& channel : elements) {
      double sum = 0;
      for (const float x : channel) sum += x;
      const double average = sum / channel.size();
      double squares = 0;
      for (const float x : channel) squares += (x - average) * (x - average);
      mean.push_back(static_cast<float>(average));
      variance.push_back(static_cast<float>(squares / channel.size()));
    }
  }
  BatchPart part() const { return {count, mean, variance}; }

  int64_t count;
  std::vector<float> mean;  // NaN without elements
  std::vector<float> variance;
};

// What normalisation of the whole batch in one process would compute.
struct Reference {
  explicit Reference(const std::vector<Elements>& ranks) : count(0) {
    const size_t channels = ranks[0].size();
    for (const Elements& rank : ranks) count += static_cast<int64_t>(rank[0].size());
    for (size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (const Elements& rank : ranks) {
        for (const float x : rank[c]) sum += x;
      }
      mean.push_back(sum / static_cast<double>(count));
      double squares = 0;
      for (const Elements& rank : ranks) {
        for (const float x : rank[c]) squares += (x - mean[c]) * (x - mean[c]);
      }
      variance.push_back(squares / static_cast<double>(count));
    }
  }

  int64_t count;
  std::vector<double> mean;
  std::vector<double> variance;
};

// Channels of very different places and widths.
std::vector<Elements> RandomBatch(const std::vector<int>& counts, int channels, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Elements> ranks;
  for (const int count : counts) {
    Elements elements(channels);
    for (int c = 0; c < channels; ++c) {
      std::normal_distribution<float> normal(static_cast<float>(1000 * (c % 3)), static_cast<float>(1 + c));
      for (int i = 0; i < count; ++i) elements[c].push_back(normal(random));
    }
    ranks.push_back(std::move(elements));
  }
  return ranks;
}

// Means and variances cross the wire as float32: half a unit in the last place of the mean, and its square in the
// variance.
void ExpectNear(const WholeBatch& batch, const Reference& expected, double epsilon) {
  EXPECT_EQ(batch.count, expected.count);
  ASSERT_EQ(batch.mean.size(), expected.mean.size());
  for (size_t c = 0; c < expected.mean.size(); ++c) {
    const double mean_error = 1e-7 * (1 + std::abs(expected.mean[c]));
    const double variance_error = 1e-6 * expected.variance[c] + 10 * mean_error * std::sqrt(expected.variance[c]);
    EXPECT_NEAR(batch.mean[c], expected.mean[c], mean_error) << "channel " << c;
    EXPECT_NEAR(batch.variance[c], expected.variance[c], variance_error) << "channel " << c;
    EXPECT_DOUBLE_EQ(batch.inverse_std[c], 1 / std::sqrt(batch.variance[c] + epsilon)) << "channel " << c;
  }
}

TEST(BatchStatistics, OfAllRanksAreThoseOfTheWholeBatch) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  for (const std::vector<int>& counts : std::vector<std::vector<int>>{
           {12}, {16, 16}, {1, 1}, {1, 30}, {0, 7}, {7, 0}, {5, 0, 9}, {0, 0, 4, 1}, {8, 8, 8, 8}}) {
    const std::vector<Elements> ranks = RandomBatch(counts, 7, seed);
    const int size = static_cast<int>(counts.size());
    std::vector<WholeBatch> results(size);
    RunWorld(size, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(results[rank], CombineBatch(communicator, Local(ranks[rank]).part(), 1e-5));
    });
    for (const WholeBatch& result : results) {
      ExpectNear(result, Reference(ranks), 1e-5);
      EXPECT_EQ(result.mean, results[0].mean) << "bit by bit";
      EXPECT_EQ(result.variance, results[0].variance);
      EXPECT_EQ(result.inverse_std, results[0].inverse_std);
    }
  }
}

// Far from zero the sum of squares would lose all of the variance, even in double.
TEST(BatchStatistics, LoseNothingWhereTheMeanIsLarge) {
  const float big = 1e30F;
  const std::vector<float> means = {big, big, big};
  const std::vector<float> variances = {1, 2, 3};
  std::vector<BatchPart> parts;
  for (int r = 0; r < 3; ++r)
    parts.push_back({10, absl::MakeConstSpan(&means[r], 1), absl::MakeConstSpan(&variances[r], 1)});
  const WholeBatch batch = JoinParts(parts, 1, 0);
  EXPECT_EQ(batch.mean[0], big);
  EXPECT_DOUBLE_EQ(batch.variance[0], 2);
}

TEST(BatchStatistics, CountBeyondWhatAFloatTells) {
  const int64_t count = (int64_t{1} << 40) - 1;
  const float zero = 0;
  const BatchPart part = {count, absl::MakeConstSpan(&zero, 1), absl::MakeConstSpan(&zero, 1)};
  RunWorld(3, [&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const WholeBatch batch, CombineBatch(communicator, part, 1));
    EXPECT_EQ(batch.count, 3 * count);
  });
}

TEST(BatchStatistics, OfNoElementsAreZerosAndLeaveTheRunningOnes) {
  const std::vector<float> nan(2, std::numeric_limits<float>::quiet_NaN());
  RunWorld(2, [&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const WholeBatch batch, CombineBatch(communicator, {0, nan, nan}, 0.25));
    EXPECT_EQ(batch.count, 0);
    EXPECT_THAT(batch.mean, ElementsAre(0, 0));
    EXPECT_THAT(batch.variance, ElementsAre(0, 0));
    EXPECT_THAT(batch.inverse_std, ElementsAre(2, 2));
    std::vector<float> mean = {1, 2};
    std::vector<float> variance = {3, 4};
    UpdateRunning(batch, 0.5, absl::MakeSpan(mean), absl::MakeSpan(variance));
    EXPECT_THAT(mean, ElementsAre(1, 2));
    EXPECT_THAT(variance, ElementsAre(3, 4));
  });
}

TEST(BatchStatistics, WithoutChannelsTellTheCount) {
  RunWorld(2, [&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const WholeBatch batch, CombineBatch(communicator, {3, {}, {}}, 1e-5));
    EXPECT_EQ(batch.count, 6);
    EXPECT_TRUE(batch.mean.empty());
  });
}

TEST(UpdateRunning, TakesTheUnbiasedVarianceUnlessThereIsASingleElement) {
  const struct {
    int64_t count;
    double variance;
    double momentum;
    float mean_after;
    float variance_after;
  } cases[] = {
      {5, 8, 0.25, 4, 7},  // 0.75 * 2 + 0.25 * 10; 0.75 * 6 + 0.25 * 8 * 5 / 4
      {1, 0, 0.5, 6, 6},
  };
  for (const auto& c : cases) {
    WholeBatch batch;
    batch.count = c.count;
    batch.mean = {10};
    batch.variance = {c.variance};
    std::vector<float> mean = {2};
    std::vector<float> variance = {6};
    UpdateRunning(batch, c.momentum, absl::MakeSpan(mean), absl::MakeSpan(variance));
    EXPECT_EQ(mean[0], c.mean_after);
    EXPECT_EQ(variance[0], c.variance_after);
  }
}

TEST(BatchStatistics, RefuseArgumentsThatCannotBe) {
  SelfCommunicator communicator(16);
  const std::vector<float> one(1);
  const std::vector<float> two(2);
  EXPECT_THAT(CombineBatch(communicator, {-1, one, one}, 0).status(), InvalidArgument("a count of -1"));
  EXPECT_THAT(CombineBatch(communicator, {(int64_t{1} << 40) + 1, one, one}, 0).status(),
              InvalidArgument("a count of 109951"));
  EXPECT_THAT(CombineBatch(communicator, {1, one, two}, 0).status(), InvalidArgument("1 means and 2 variances"));
  EXPECT_THAT(CombineBatch(communicator, {1, one, one}, -1e-5).status(), InvalidArgument("an epsilon of -1e-05"));
  EXPECT_THAT(CombineBatch(communicator, {1, one, one}, std::nan("")).status(), InvalidArgument("an epsilon of nan"));
  EXPECT_THAT(CombineBatch(communicator, {1, one, one}, std::numeric_limits<double>::infinity()).status(),
              InvalidArgument("an epsilon of inf"));
  std::vector<float> dy(1);
  std::vector<float> dy_xmu(2);
  EXPECT_THAT(SumBatchGradients(communicator, absl::MakeSpan(dy), absl::MakeSpan(dy_xmu)),
              InvalidArgument("1 sums of dy and 2 of"));
}

TEST(BatchStatistics, OfDifferentChannelsAreFoundOut) {
  RunWorld(2, [&](Communicator& communicator) {
    const std::vector<float> values(communicator.rank() == Rank(0) ? 3 : 4);
    EXPECT_THAT(CombineBatch(communicator, {1, values, values}, 0).status(), FailedPrecondition("all_gather"));
  });
}

// One rounding in all: 1 is far below the float32 unit of 1e9, and comes back when the large ones have gone.
TEST(SumBatchGradients, AddsInDoubleAndRoundsOnce) {
  const std::vector<std::vector<float>> dy = {{1e9F, 0.5F}, {1, 0.25F}, {-1e9F, 1}};
  for (int size = 2; size <= 3; ++size) {
    RunWorld(size, [&](Communicator& communicator) {
      std::vector<float> sum_dy = dy[communicator.rank().value()];
      std::vector<float> sum_dy_xmu = {static_cast<float>(communicator.rank().value()), -1};
      LOCKSTEP_ASSERT_OK(SumBatchGradients(communicator, absl::MakeSpan(sum_dy), absl::MakeSpan(sum_dy_xmu)));
      EXPECT_THAT(sum_dy, size == 3 ? ElementsAre(1.0F, 1.75F) : ElementsAre(1e9F, 0.75F));
      EXPECT_THAT(sum_dy_xmu, ElementsAre(size * (size - 1) / 2, -size));
    });
  }
}

TEST(SumBatchGradients, OfNoChannelsIsNothing) {
  RunWorld(2, [&](Communicator& communicator) { LOCKSTEP_EXPECT_OK(SumBatchGradients(communicator, {}, {})); });
}

}  // namespace
}  // namespace lockstep::testing
