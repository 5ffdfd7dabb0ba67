// Gradients whose averages go elsewhere, in another precision: MarkReady with a target.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
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
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MakeParameter;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::VectorView;

constexpr int kCount = 500;

// Whole numbers that bf16 has, and their sums too.
float Number(int rank, int step, int i) { return static_cast<float>((5 * rank + 3 * step + i) % 32 - 16); }

// A rank's gradient in bf16 and what the optimizer wants, in f32.
class Halves {
 public:
  explicit Halves(int rank) : rank_(rank), gradient_(kCount), target_(kCount) {}

  TensorView gradient() { return VectorView(gradient_.data(), DType::kBF16, kCount); }
  TensorView target() { return VectorView(target_.data(), DType::kF32, kCount); }

  void Compute(int step) {
    for (int i = 0; i < kCount; ++i) gradient_[i] = BFloat16(Number(rank_, step, i));
    target_.assign(kCount, std::nanf(""));
  }
  void ExpectOwnGradient(int step) const {
    for (int i = 0; i < kCount; ++i) ASSERT_EQ(static_cast<float>(gradient_[i]), Number(rank_, step, i)) << i;
  }
  void ExpectAverage(int size, int step, double divisor, double epsilon) const {
    for (int i = 0; i < kCount; ++i) {
      double sum = 0;
      for (int rank = 0; rank < size; ++rank) sum += Number(rank, step, i);
      // Each addend and each sum may round, to something as large as that.
      ASSERT_NEAR(target_[i], sum / divisor, epsilon * 2 * size * 16 * size / divisor) << i;
    }
  }
  const ReachableVector<float>& averages() const { return target_; }

 private:
  const int rank_;
  ReachableVector<BFloat16> gradient_;
  ReachableVector<float> target_;
};

class Targets : public ::testing::TestWithParam<std::tuple<int, Average>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  Average average() const { return std::get<1>(GetParam()); }
  double divisor() const { return average() == Average::kNone ? 1 : size(); }
  // Of what comes before the cast: nothing is rounded to bf16 where the sum is a whole number, and with two or four
  // ranks nothing is rounded at all.
  double epsilon() const {
    if (size() != 3 || average() == Average::kNone) return 0;
    const bool divides_in_bf16 = average() == Average::kBefore || average() == Average::kInCollective;
    return std::ldexp(1, divides_in_bf16 ? -8 : -24);
  }
  ReducerOptions options() const {
    ReducerOptions options;
    options.average = average();
    options.predivide_factor = 2;
    return options;
  }
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, Average>>& info) {
  const char* const averages[] = {"Before", "After", "None", "InCollective", "Predivide"};
  return absl::StrCat(std::get<0>(info.param), "Ranks", averages[static_cast<int>(std::get<1>(info.param))]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Targets,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(Average::kBefore, Average::kAfter, Average::kNone,
                                                              Average::kInCollective, Average::kPredivide)),
                         NameOf);

TEST_P(Targets, GetTheAverageAndGradientsAreOnlyRead) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  std::vector<ReachableVector<float>> averages(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Halves halves(rank);
    const std::unique_ptr<Stream> stream = testing::TestDevice(rank)->CreateStream("test").value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(
        const auto reducer, Reducer::Create(&communicator, {MakeParameter("p", DType::kBF16, {kCount})}, options()));
    for (int step = 0; step < 3; ++step) {
      halves.Compute(step);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, halves.gradient(), halves.target(), step == 1 ? stream.get() : nullptr));
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      halves.ExpectOwnGradient(step);
      halves.ExpectAverage(size(), step, divisor(), epsilon());
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView where, reducer->AverageOf(0));
      EXPECT_EQ(where.data(), halves.averages().data());
      EXPECT_EQ(where.dtype(), DType::kF32);
    }
    averages[rank] = halves.averages();
  });
  EXPECT_THAT(averages, Each(averages[0]));
}

TEST_P(Targets, GetTheAverageOfBucketViews) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Halves halves(communicator.rank().value());
    ReducerOptions views = options();
    views.gradient_as_bucket_view = true;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, {MakeParameter("p", DType::kBF16, {kCount})}, views));
    for (int step = 0; step < 2; ++step) {
      halves.Compute(step);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, reducer->GradientView(0));
      testing::CopyAnywhere(view.data(), halves.gradient().data(), view.bytes());
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, view, halves.target(), nullptr));
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      halves.ExpectAverage(size(), step, divisor(), epsilon());
    }
  });
}

TEST(TargetStrides, AreThoseOfTheTable) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    // Columns first; and rows with gaps between them.
    const std::vector<Parameter> table = {MakeParameter("columns", DType::kBF16, {2, 3}, {1, 2}),
                                          MakeParameter("gaps", DType::kBF16, {2, 3}, {4, 1})};
    const int rank = communicator.rank().value();
    Replica gradients(table, rank);
    // The same numbers, in the other dtype: what is to be there in the end.
    std::vector<Parameter> wide = table;
    for (Parameter& parameter : wide) parameter.dtype = DType::kF64;
    Replica targets(wide, rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, table, {}));
    gradients.Compute(5);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    for (const size_t index : {0, 1}) {
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, gradients.gradient(index), targets.gradient(index), nullptr));
    }
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    targets.ExpectAverages(2, {5});
    for (const size_t index : {0, 1}) gradients.ExpectLocal(index, 5);
  });
}

TEST(TargetErrors, AreRefusedAndTheGradientMayBeMarkedAgain) {
  LoopbackWorld world(1, {}, ShortTimeout());
  const std::vector<Parameter> table = {MakeParameter("real", DType::kBF16, {4}),
                                        MakeParameter("complex", DType::kComplex64, {4})};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(world.communicator(0), table, {}));
  Replica replica(table, 0);
  replica.Compute(0);
  ReachableVector<double> memory(64, 0.0);
  const auto view = [&](DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
    return TensorView::Create(memory.data(), dtype, shape, strides, testing::TestDeviceId()).value();
  };
  LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not fit parameter"));
  for (const TensorView& bad : {view(DType::kI32, {4}), view(DType::kComplex64, {4}), view(DType::kF32, {5}),
                                view(DType::kF32, {2, 2}), view(DType::kF32, {4}, {2})}) {
    EXPECT_THAT(reducer->MarkReady(0, replica.gradient(0), bad, nullptr), refused) << bad.ToString();
  }
  for (const TensorView& bad : {view(DType::kF32, {4}), view(DType::kComplex128, {4})}) {
    EXPECT_THAT(reducer->MarkReady(1, replica.gradient(1), bad, nullptr), refused) << bad.ToString();
  }
  LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, replica.gradient(0), view(DType::kF64, {4}), nullptr));
  LOCKSTEP_EXPECT_OK(reducer->MarkReady(1, replica.gradient(1), replica.gradient(1), nullptr));
  LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
  EXPECT_EQ(memory[1], static_cast<float>(static_cast<const BFloat16*>(replica.gradient(0).data())[1]));
}

}  // namespace
}  // namespace lockstep
