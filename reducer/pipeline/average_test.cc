#include "reducer/pipeline/average.h"

#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/reduce_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr Average kAll[] = {Average::kBefore, Average::kAfter, Average::kNone, Average::kInCollective,
                            Average::kPredivide};

// What the reduction alone makes of what each rank puts in.
double InCollective(const AverageFactors& factors, int ranks) {
  if (factors.op == ReduceOp::kAvg) return 1.0 / ranks;
  return factors.op == ReduceOp::kPremulSum ? factors.premultiply : 1.0;
}

TEST(FactorsOf, MultiplyUpToTheAverageAndMakeTheReductionCountByOnes) {
  for (const Average average : kAll) {
    for (const bool in_place : {false, true}) {
      for (int ranks = 1; ranks <= 65; ++ranks) {
        for (const double divisor : {0.25, 1.0, 3.0, 8.0}) {
          SCOPED_TRACE(::testing::Message()
                       << "average " << static_cast<int>(average) << ", " << ranks << " ranks, predivide " << divisor);
          const AverageFactors factors = FactorsOf(average, divisor, ranks, in_place);
          const double product = factors.copy_in * InCollective(factors, ranks) * factors.copy_out;
          EXPECT_NEAR(factors.before_sum * factors.copy_out, product, 1e-12);
          EXPECT_NEAR(product * ranks, average == Average::kNone ? ranks : 1, 1e-12);
          EXPECT_NEAR(factors.one * InCollective(factors, ranks), 1, 1e-6);
        }
      }
    }
  }
}

TEST(FactorsOf, DivideWhereTheNameSays) {
  const struct {
    Average average;
    double predivide;
    double copy_in;
    ReduceOp op;
    double copy_out;
  } cases[] = {
      {Average::kBefore, 1, 0.25, ReduceOp::kSum, 1},    {Average::kAfter, 1, 1, ReduceOp::kSum, 0.25},
      {Average::kInCollective, 1, 1, ReduceOp::kAvg, 1}, {Average::kPredivide, 2, 0.5, ReduceOp::kSum, 0.5},
      {Average::kNone, 1, 1, ReduceOp::kSum, 1},
  };
  for (const auto& c : cases) {
    const AverageFactors factors = FactorsOf(c.average, c.predivide, 4, false);
    EXPECT_EQ(factors.copy_in, c.copy_in) << static_cast<int>(c.average);
    EXPECT_EQ(factors.op, c.op) << static_cast<int>(c.average);
    EXPECT_EQ(factors.copy_out, c.copy_out) << static_cast<int>(c.average);
  }
}

TEST(FactorsOf, InPlaceNothingIsMultipliedOnTheWayIn) {
  for (const Average average : kAll) {
    for (const int ranks : {1, 2, 3}) EXPECT_EQ(FactorsOf(average, 2, ranks, true).copy_in, 1);
  }
  EXPECT_EQ(FactorsOf(Average::kBefore, 1, 4, true).op, ReduceOp::kAvg);
  EXPECT_EQ(FactorsOf(Average::kBefore, 1, 4, true).one, 4);
  EXPECT_EQ(FactorsOf(Average::kPredivide, 2, 4, true).op, ReduceOp::kPremulSum);
  EXPECT_EQ(FactorsOf(Average::kPredivide, 2, 4, true).premultiply, 0.5);
  // Nothing to do is nothing done.
  EXPECT_EQ(FactorsOf(Average::kBefore, 1, 1, true).op, ReduceOp::kSum);
  EXPECT_EQ(FactorsOf(Average::kPredivide, 1, 4, true).op, ReduceOp::kSum);
  EXPECT_EQ(FactorsOf(Average::kAfter, 1, 4, true).op, ReduceOp::kSum);
}

TEST(CheckPredivideFactor, WantsWhatOneCanDivideBy) {
  for (const double good : {1.0, 0.5, 1024.0}) LOCKSTEP_EXPECT_OK(CheckPredivideFactor(good));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -0.0, -1.0, kInfinity, -kInfinity, std::nan("")}) {
    EXPECT_THAT(CheckPredivideFactor(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("predivide_factor: gradients cannot be divided by")));
  }
}

}  // namespace
}  // namespace lockstep
