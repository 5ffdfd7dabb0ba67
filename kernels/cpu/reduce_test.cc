#include "kernels/cpu/reduce.h"

#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/variant.h"

namespace lockstep {
namespace kernels {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CombineFor, GivesTheActiveVariantsFunctionForEveryDefinedCombination) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      if (!IsDefined(dtype, op) || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) continue;
      EXPECT_THAT(CombineFor(dtype, op),
                  IsOkAndHolds(ActiveTable().combine[static_cast<int>(dtype)][static_cast<int>(op)]))
          << Name(op) << " of " << Name(dtype);
    }
  }
}

TEST(CombineFor, Combines) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const CombineFunction sum, CombineFor(DType::kF32, ReduceOp::kSum));
  std::vector<float> left = {1, 2, 3};
  const std::vector<float> right = {10, 20, 30};
  sum(left.data(), left.data(), right.data(), left.size());
  EXPECT_THAT(left, ElementsAre(11, 22, 33));
}

TEST(CombineFor, AverageAndPremulSumAreNoCombination) {
  EXPECT_THAT(CombineFor(DType::kF32, ReduceOp::kAvg),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(Name(ReduceOp::kAvg)), HasSubstr("f32"), HasSubstr("a sum and a scaling"))));
  EXPECT_THAT(CombineFor(DType::kBF16, ReduceOp::kPremulSum),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a sum and a scaling")));
}

TEST(CombineFor, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(CombineFor(DType::kComplex64, ReduceOp::kMin),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("complex64")));
  EXPECT_THAT(CombineFor(DType::kF32, ReduceOp::kXor), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("f32")));
  EXPECT_THAT(CombineFor(static_cast<DType>(200), ReduceOp::kSum),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("200")));
  EXPECT_THAT(CombineFor(DType::kF32, static_cast<ReduceOp>(77)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("77")));
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep
