// Gradients whose averages go elsewhere, in another precision: MarkReady with a target.

#include <cmath>
#include <vector>

#include "base/types/bfloat16.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

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

class Targets : public AveragesTest {
 protected:
  // EXPECTs the average at the target.
  void ExpectAverage(const Halves& halves, int step) const {
    const bool divides_in_bf16 = average() == Average::kBefore || average() == Average::kInCollective;
    // Of what comes before the cast: nothing is rounded to bf16 where the sum is a whole number, and with two or four
    // ranks nothing is rounded at all.
    const bool exact = size() != 3 || average() == Average::kNone;
    halves.ExpectAverage(size(), step, average() == Average::kNone ? 1 : size(),
                         exact ? 0 : std::ldexp(1, divides_in_bf16 ? -8 : -24));
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, Targets,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kAllAverages)),
                         AveragesTest::NameOf);

std::vector<Parameter> Table() { return {MakeParameter("p", DType::kBF16, {kCount})}; }

TEST_P(Targets, GetTheAverageAndGradientsAreOnlyRead) {
  std::vector<ReachableVector<float>> averages(size());
  RunWorkers(size(), Table(), options(), [&](Worker& worker) {
    Halves halves(worker.rank());
    for (int step = 0; step < 3; ++step) {
      halves.Compute(step);
      LOCKSTEP_EXPECT_OK(worker.Begin());
      LOCKSTEP_EXPECT_OK(
          worker.reducer().MarkReady(0, halves.gradient(), halves.target(), step == 1 ? &worker.stream() : nullptr));
      LOCKSTEP_EXPECT_OK(worker.End());
      halves.ExpectOwnGradient(step);
      ExpectAverage(halves, step);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView where, worker.reducer().AverageOf(0));
      EXPECT_EQ(where.data(), halves.averages().data());
      EXPECT_EQ(where.dtype(), DType::kF32);
    }
    averages[worker.rank()] = halves.averages();
  });
  EXPECT_THAT(averages, Each(averages[0]));
}

TEST_P(Targets, GetTheAverageOfBucketViews) {
  ReducerOptions views = options();
  views.gradient_as_bucket_view = true;
  RunWorkers(size(), Table(), views, [this](Worker& worker) {
    Halves halves(worker.rank());
    for (int step = 0; step < 2; ++step) {
      halves.Compute(step);
      const TensorView view = worker.View(0);
      CopyAnywhere(view.data(), halves.gradient().data(), view.bytes());
      LOCKSTEP_EXPECT_OK(worker.Begin());
      LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(0, view, halves.target(), nullptr));
      LOCKSTEP_EXPECT_OK(worker.End());
      ExpectAverage(halves, step);
    }
  });
}

// The next synchronised backward has no mark, and the target may be gone.
TEST_P(Targets, OfBackwardsWithoutSyncAreIgnored) {
  ReducerOptions find_unused = options();
  find_unused.find_unused = true;
  RunWorkers(size(), Table(), find_unused, [this](Worker& worker) {
    Halves halves(worker.rank());
    halves.Compute(1);
    LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
    LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(0, halves.gradient(), halves.target(), nullptr));
    LOCKSTEP_EXPECT_OK(worker.End());
    LOCKSTEP_EXPECT_OK(worker.Begin());
    LOCKSTEP_EXPECT_OK(worker.End());
    halves.ExpectOwnGradient(1);
    for (const float untouched : halves.averages()) EXPECT_TRUE(std::isnan(untouched));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView where, worker.reducer().AverageOf(0));
    EXPECT_NE(where.data(), halves.gradient().data());
    ReachableVector<BFloat16> averages(kCount);
    CopyAnywhere(averages.data(), where.data(), where.bytes());
    double sum = 0;
    for (int rank = 0; rank < size(); ++rank) sum += Number(rank, 1, 7);
    EXPECT_NEAR(static_cast<float>(averages[7]), average() == Average::kNone ? sum : sum / size(), 0.2);
  });
}

TEST(TargetStrides, AreThoseOfTheTable) {
  // Columns first; and rows with gaps between them.
  const std::vector<Parameter> table = {MakeParameter("columns", DType::kBF16, {2, 3}, {1, 2}),
                                        MakeParameter("gaps", DType::kBF16, {2, 3}, {4, 1})};
  RunWorkers(2, table, {}, [&](Worker& worker) {
    // The same numbers, in the other dtype: what is to be there in the end.
    std::vector<Parameter> wide = table;
    for (Parameter& parameter : wide) parameter.dtype = DType::kF64;
    Replica targets(wide, worker.rank());
    worker.BeginStep(5);
    for (const size_t index : {0, 1}) {
      LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(index, worker.gradient(index), targets.gradient(index), nullptr));
    }
    LOCKSTEP_EXPECT_OK(worker.End());
    targets.ExpectAverages(2, {5});
    worker.ExpectLocals(5);
  });
}

TEST(TargetErrors, AreRefusedAndTheGradientMayBeMarkedAgain) {
  const std::vector<Parameter> table = {MakeParameter("real", DType::kBF16, {4}),
                                        MakeParameter("complex", DType::kComplex64, {4})};
  RunWorkers(1, table, {}, [](Worker& worker) {
    worker.Compute(0);
    ReachableVector<double> memory(64, 0.0);
    const auto view = [&](DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
      return TensorView::Create(memory.data(), dtype, shape, strides, TestDeviceId()).value();
    };
    const auto mark = [&](size_t index, const TensorView& target) {
      return worker.reducer().MarkReady(index, worker.gradient(index), target, nullptr);
    };
    LOCKSTEP_EXPECT_OK(worker.Begin());
    for (const TensorView& bad : {view(DType::kI32, {4}), view(DType::kComplex64, {4}), view(DType::kF32, {5}),
                                  view(DType::kF32, {2, 2}), view(DType::kF32, {4}, {2})}) {
      EXPECT_THAT(mark(0, bad), InvalidArgument("does not fit parameter")) << bad.ToString();
    }
    for (const TensorView& bad : {view(DType::kF32, {4}), view(DType::kComplex128, {4})}) {
      EXPECT_THAT(mark(1, bad), InvalidArgument("does not fit parameter")) << bad.ToString();
    }
    LOCKSTEP_EXPECT_OK(mark(0, view(DType::kF64, {4})));
    LOCKSTEP_EXPECT_OK(mark(1, worker.gradient(1)));
    LOCKSTEP_EXPECT_OK(worker.End());
    EXPECT_EQ(memory[1], static_cast<float>(static_cast<const BFloat16*>(worker.gradient(0).data())[1]));
  });
}

}  // namespace
}  // namespace lockstep::testing
