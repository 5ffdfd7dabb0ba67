// Buckets that are sent in 16 bits: half the bytes, and roundings that are known.

#include <cmath>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

class Compression : public ::testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  DType wire() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Reducer, Compression,
                         ::testing::Combine(::testing::Values(2, 3), ::testing::Values(DType::kF16, DType::kBF16)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<1>(info.param)), "On", std::get<0>(info.param), "Ranks");
                         });

// Each rank's contribution rounds once and so does each sum, relatively by half of the dtype's last place at most.
TEST_P(Compression, RoundsOnceForEachContributionAndSum) {
  constexpr int kCount = 20000;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const double unit = std::ldexp(1, wire() == DType::kF16 ? -11 : -8);
  const double smallest = wire() == DType::kF16 ? std::ldexp(1, -24) : 0;  // f16 has subnormals in this range
  std::vector<std::vector<float>> gradients(size(), std::vector<float>(kCount));
  std::vector<double> sums(kCount, 0.0);
  std::vector<double> magnitudes(kCount, 0.0);
  std::mt19937 random(seed);
  for (std::vector<float>& gradient : gradients) {
    for (int i = 0; i < kCount; ++i) {
      gradient[i] = std::uniform_real_distribution<float>(-1, 1)(random);
      sums[i] += gradient[i];
      magnitudes[i] += std::abs(gradient[i]);
    }
  }
  ReducerOptions options;
  options.compress = wire();
  RunWorkers(size(), Vectors(1, kCount), options, [&](Worker& worker) {
    std::vector<float>& gradient = gradients[worker.rank()];
    CopyAnywhere(worker.gradient(0).data(), gradient.data(), worker.gradient(0).bytes());
    LOCKSTEP_EXPECT_OK(worker.Backward());
    gradient = Floats(worker.gradient(0));
  });
  EXPECT_THAT(gradients, Each(gradients[0]));
  int wrong = 0;
  int rounded = 0;
  for (int i = 0; i < kCount; ++i) {
    const double error = std::abs(gradients[0][i] - sums[i] / size());
    // (1 + u)^n - 1, for n roundings on a contribution's way.
    const double bound = (std::pow(1 + unit, size()) - 1) * magnitudes[i] / size() + size() * smallest;
    wrong += error > bound ? 1 : 0;
    rounded += error > 1e-6 ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0) << "of " << kCount;
  EXPECT_GT(rounded, kCount / 2) << "it was not compressed";
}

TEST_P(Compression, SendsHalfTheBytes) {
  int64_t bytes[2] = {};
  for (const bool half : {false, true}) {
    ReducerOptions options;
    if (half) options.compress = wire();
    RunWorkers(size(), Vectors(2, 100000), options, [&](Worker& worker) {
      LOCKSTEP_EXPECT_OK(worker.Step(0));
      if (worker.rank() == 0) bytes[half] = worker.reducer().statistics().bytes_reduced;
    });
  }
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 0.5, 0.01);
}

}  // namespace
}  // namespace lockstep::testing
