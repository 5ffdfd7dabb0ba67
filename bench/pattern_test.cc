#include "bench/pattern.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 2 * Pattern::kPeriod + 7;

// What the ranks' inputs come to when they are combined in this order, with each partial result rounded to the dtype.
std::vector<char> Reduced(const Pattern& pattern, DType dtype, ReduceOp op, const std::vector<int>& order) {
  const size_t bytes = kCount * SizeOf(dtype);
  const int ranks = static_cast<int>(order.size());
  const bool scaled_average = op == ReduceOp::kAvg && !IsInteger(dtype);
  const ReduceOp combined = op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? ReduceOp::kSum : op;
  std::vector<char> result(bytes);
  std::vector<char> input(bytes);
  for (int k = 0; k < ranks; ++k) {
    pattern.FillInput(Rank(order[k]), 0, input.data(), kCount);
    if (scaled_average) kernels::ReferenceScale(dtype, input.data(), input.data(), kCount, 1.0 / ranks);
    if (op == ReduceOp::kPremulSum) {
      kernels::ReferenceScale(dtype, input.data(), input.data(), kCount, Pattern::kFactor);
    }
    if (k == 0) {
      result = input;
    } else {
      kernels::ReferenceCombine(dtype, combined, result.data(), result.data(), input.data(), kCount);
    }
  }
  if (op == ReduceOp::kAvg && IsInteger(dtype)) {
    kernels::ReferenceDivideTowardZero(dtype, result.data(), kCount, ranks);
  }
  return result;
}

TEST(Pattern, TheResultIsExactInAnyOrderForEveryDTypeAndOp) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      if (!IsDefined(dtype, op)) continue;
      for (const int ranks : {1, 2, 3, 4, 8, 9, 64}) {
        const absl::StatusOr<Pattern> pattern = Pattern::Create(dtype, op, ranks);
        if (op == ReduceOp::kAvg && !IsInteger(dtype) && (ranks == 3 || ranks == 9)) {
          EXPECT_THAT(pattern, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("power of two")));
          continue;
        }
        ASSERT_THAT(pattern, IsOk());
        std::vector<int> order(ranks);
        for (int i = 0; i < ranks; ++i) order[i] = i;
        const std::string what = absl::StrCat(Name(dtype), " ", Name(op), " of ", ranks);
        EXPECT_EQ(pattern->CountWrongResult(0, Reduced(*pattern, dtype, op, order).data(), kCount), 0) << what;
        std::reverse(order.begin(), order.end());
        EXPECT_EQ(pattern->CountWrongResult(0, Reduced(*pattern, dtype, op, order).data(), kCount), 0) << what;
      }
    }
  }
}

TEST(Pattern, AMissingRankIsSeen) {
  const auto pattern = Pattern::Create(DType::kF32, ReduceOp::kSum, 2);
  ASSERT_THAT(pattern, IsOk());
  std::vector<float> alone(kCount);
  pattern->FillInput(Rank(0), 0, alone.data(), kCount);
  EXPECT_GT(pattern->CountWrongResult(0, alone.data(), kCount), kCount / 2);
}

TEST(Pattern, CountsEachWrongElementOnce) {
  const auto pattern = Pattern::Create(DType::kI32, ReduceOp::kSum, 4);
  ASSERT_THAT(pattern, IsOk());
  std::vector<int32_t> data(kCount);
  pattern->FillResult(0, data.data(), kCount);
  EXPECT_EQ(pattern->CountWrongResult(0, data.data(), kCount), 0);
  for (const size_t index : {size_t{0}, size_t{Pattern::kPeriod - 1}, size_t{Pattern::kPeriod}, kCount - 1}) {
    data[index] += 1 << 16;
  }
  EXPECT_EQ(pattern->CountWrongResult(0, data.data(), kCount), 4);
  EXPECT_EQ(pattern->CountWrongResult(0, data.data(), 0), 0);
}

TEST(Pattern, ABlockInTheWrongPlaceIsSeen) {
  const auto pattern = Pattern::Create(DType::kU8, ReduceOp::kMax, 2);
  ASSERT_THAT(pattern, IsOk());
  for (int64_t distance = 1; distance < int64_t{1} << 40; distance *= 2) {
    uint8_t data[64];
    pattern->FillInput(Rank(1), distance, data, sizeof(data));
    EXPECT_EQ(pattern->CountWrongInput(Rank(1), distance, data, sizeof(data)), 0) << distance;
    EXPECT_GT(pattern->CountWrongInput(Rank(1), 0, data, sizeof(data)), 32) << distance;
  }
}

TEST(Pattern, RefusesAnOpWithoutMeaning) {
  EXPECT_THAT(Pattern::Create(DType::kF32, ReduceOp::kXor, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("xor")));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
