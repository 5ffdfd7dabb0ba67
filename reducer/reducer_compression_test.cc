// Buckets that are sent in 16 bits: half the bytes, and roundings that are known.

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/record/signature.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MixedTable;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

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

TEST_P(Compression, IsExactWhereTheNumbersAre) {
  for (const auto average :
       {Average::kBefore, Average::kAfter, Average::kNone, Average::kInCollective, Average::kPredivide}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      Replica replica(MixedTable(), communicator.rank().value());
      ReducerOptions options;
      options.bucket_caps_bytes = {64, 500};
      options.average = average;
      options.predivide_factor = 2;
      options.compress = wire();
      const auto reducer = Create(communicator, replica.table(), options);
      for (int step = 0; step < 3; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
        replica.ExpectAverages(2, {step}, average);
      }
    });
  }
}

// Each rank's contribution rounds once and so does each sum, relatively by half of the dtype's last place at most.
TEST_P(Compression, RoundsOnceForEachContributionAndSum) {
  constexpr int kCount = 20000;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const double unit = std::ldexp(1, wire() == DType::kF16 ? -11 : -8);
  const double smallest = wire() == DType::kF16 ? std::ldexp(1, -24) : 0;  // f16 has subnormals in this range
  std::vector<ReachableVector<float>> gradients(size(), ReachableVector<float>(kCount));
  std::vector<double> sums(kCount, 0.0);
  std::vector<double> magnitudes(kCount, 0.0);
  std::mt19937 random(seed);
  for (ReachableVector<float>& gradient : gradients) {
    for (int i = 0; i < kCount; ++i) {
      gradient[i] = std::uniform_real_distribution<float>(-1, 1)(random);
      sums[i] += gradient[i];
      magnitudes[i] += std::abs(gradient[i]);
    }
  }
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReachableVector<float>& gradient = gradients[communicator.rank().value()];
    ReducerOptions options;
    options.compress = wire();
    const auto reducer = Create(communicator, {testing::MakeParameter("p", DType::kF32, {kCount})}, options);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, testing::VectorView(gradient.data(), DType::kF32, kCount), nullptr));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
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
  EXPECT_THAT(rounded, Gt(kCount / 2)) << "it was not compressed";
}

// Bytes of all-reduces by dtype, as they are handed to the network.
class Meter {
 public:
  void See(const LoopbackMessage& message) {
    const Signature signature = DecodeSignature(message.envelope);
    if (signature.collective != Collective::kAllReduce) return;
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
    world.Run([&](Communicator& communicator) {
      Replica replica(Vectors(2, kCount), communicator.rank().value());
      ReducerOptions options;
      options.compress = compress;
      const auto reducer = Create(communicator, replica.table(), options);
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
      if (communicator.rank().value() == 0) *reduced = reducer->statistics().bytes_reduced;
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

TEST(CompressionOptions, KnowTwoDTypes) {
  LoopbackWorld world(1, {}, ShortTimeout());
  for (const DType dtype : {DType::kF32, DType::kF8E4M3, DType::kI32}) {
    ReducerOptions options;
    options.compress = dtype;
    EXPECT_THAT(Reducer::Create(world.communicator(0), Vectors(1, 1), options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("compressed to f16 or bf16, not to")));
  }
}

}  // namespace
}  // namespace lockstep
