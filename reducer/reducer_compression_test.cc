// Buckets that are sent in 16 bits: half the bytes, and roundings that are known.

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/optional.h"
#include "base/mutex.h"
#include "comm/record/signature.h"
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

// Bytes of all-reduces by dtype, as they are handed to the network.
class Meter {
 public:
  void See(const LoopbackMessage& message) {
    const Signature signature = DecodeSignature(message.envelope);
    // A status trailer that travels alone has a few elements.
    if (signature.collective != Collective::kAllReduce || signature.count < 100) return;
    MutexLock lock(&mu_);
    bytes_[signature.dtype] += message.bytes;
  }
  std::map<DType, size_t> bytes() {
    MutexLock lock(&mu_);
    return bytes_;
  }

 private:
  Mutex mu_;
  std::map<DType, size_t> bytes_ ABSL_GUARDED_BY(mu_);
};

TEST_P(Compression, SendsHalfTheBytes) {
  constexpr int64_t kCount = 100000;
  const auto run = [&](absl::optional<DType> compress, int64_t* reduced) {
    Meter meter;
    LoopbackOptions network;
    network.observer = [&meter](const LoopbackMessage& message) { meter.See(message); };
    LoopbackWorld world(size(), network, ShortTimeout());
    ReducerOptions options;
    options.compress = compress;
    world.Run([&](Communicator& communicator) {
      Worker worker(communicator, Vectors(2, kCount), options);
      LOCKSTEP_EXPECT_OK(worker.Step(0));
      if (worker.rank() == 0) *reduced = worker.reducer().statistics().bytes_reduced;
    });
    return meter.bytes();
  };
  int64_t reduced_full = 0;
  int64_t reduced_half = 0;
  const std::map<DType, size_t> full = run(absl::nullopt, &reduced_full);
  const std::map<DType, size_t> half = run(wire(), &reduced_half);
  ASSERT_EQ(full.count(DType::kF32), 1);
  ASSERT_EQ(half.count(wire()), 1);
  EXPECT_EQ(half.count(DType::kF32), 0) << "something went uncompressed";
  const double ratio = static_cast<double>(half.at(wire())) / static_cast<double>(full.at(DType::kF32));
  EXPECT_NEAR(ratio, 0.5, 0.01);
  EXPECT_NEAR(static_cast<double>(reduced_half) / static_cast<double>(reduced_full), 0.5, 0.01);
}

}  // namespace
}  // namespace lockstep::testing
