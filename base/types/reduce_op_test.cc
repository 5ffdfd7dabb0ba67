#include "base/types/reduce_op.h"

#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr ReduceOp kNoOp = static_cast<ReduceOp>(99);

TEST(ReduceOpTest, NumbersAreTheWireFormat) {
  for (int i = 0; i < kReduceOpCount; ++i) EXPECT_EQ(static_cast<int>(kAllReduceOps[i]), i);
  EXPECT_EQ(static_cast<int>(ReduceOp::kXor), 8);
}

TEST(ReduceOpTest, NamesAreDistinctAndParseBack) {
  std::set<std::string> names;
  for (ReduceOp op : kAllReduceOps) {
    EXPECT_TRUE(names.insert(Name(op)).second) << Name(op);
    EXPECT_THAT(ParseReduceOp(Name(op)), IsOkAndHolds(op));
  }
  EXPECT_EQ(Name(ReduceOp::kPremulSum), "premul_sum");
  EXPECT_EQ(Name(kNoOp), "reduce_op(99)");
  EXPECT_THAT(ParseReduceOp("mean"), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr("\"mean\""), HasSubstr("premul_sum, prod"))));
}

// Columns: sum avg premul_sum prod min max and or xor.
TEST(ReduceOpTest, DefinedPairs) {
  for (DType dtype : kAllDTypes) {
    const char* const defined = dtype == DType::kBool ? "x..xxxxxx"
                                : IsInteger(dtype)    ? "xx.xxxxxx"
                                : IsFloat(dtype)      ? "xxxxxx..."
                                                      : "xxxx.....";
    for (ReduceOp op : kAllReduceOps) {
      const bool expected = defined[static_cast<int>(op)] == 'x';
      EXPECT_EQ(IsDefined(dtype, op), expected) << Name(op) << " of " << Name(dtype);
      if (expected) {
        EXPECT_THAT(CheckDefined(dtype, op), IsOk());
      } else {
        EXPECT_THAT(CheckDefined(dtype, op),
                    StatusIs(absl::StatusCode::kInvalidArgument,
                             HasSubstr(absl::StrCat("operation ", Name(op), " is not defined for ", Name(dtype)))));
      }
    }
  }
}

TEST(ReduceOpTest, NumbersFromOutsideAreRefused) {
  EXPECT_FALSE(IsValid(kNoOp));
  EXPECT_THAT(CheckDefined(DType::kF32, kNoOp), StatusIs(absl::StatusCode::kInvalidArgument,
                                                         HasSubstr("operation reduce_op(99) is not defined for f32")));
  EXPECT_THAT(CheckDefined(static_cast<DType>(77), ReduceOp::kSum),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("operation sum is not defined for dtype(77)")));
}

}  // namespace
}  // namespace lockstep
