#include "kernels/cpu/fold_kernels.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/host_device.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace kernels {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class HostFold : public ::testing::Test {
 protected:
  void Finish() { EXPECT_THAT(stream_->Synchronize(Deadline::AfterMs(30'000)), IsOk()); }

  const FoldKernels& kernels_ = *HostFoldKernels();
  const std::unique_ptr<Stream> stream_ = HostDevice()->CreateStream("fold").value();
};

TEST_F(HostFold, FoldsInTheOrderOfTheSourcesIntoOneOfThem) {
  // (1e30 - 1e30) + 1, where 1e30 + (-1e30 + 1) would be 0.
  std::vector<float> large(70, 1e30f), minus_large(70, -1e30f), one(70, 1);
  {
    const std::vector<const void*> sources = {large.data(), minus_large.data(), one.data()};
    ASSERT_THAT(kernels_.Fold(DType::kF32, ReduceOp::kSum, one.data(), sources, one.size(), 1, *stream_), IsOk());
  }
  Finish();
  EXPECT_THAT(one, Each(1.0f));
  EXPECT_THAT(large, Each(1e30f));
}

TEST_F(HostFold, ScalesSourcesAndArraysAndDivides) {
  std::vector<float> a = {2, 4}, b = {6, 8}, sum(2);
  const void* const sources[] = {a.data(), b.data()};
  ASSERT_THAT(kernels_.Fold(DType::kF32, ReduceOp::kSum, sum.data(), sources, 2, 0.5, *stream_), IsOk());
  ASSERT_THAT(kernels_.Scale(DType::kF32, a.data(), b.data(), 2, 2, *stream_), IsOk());
  std::vector<int32_t> integers = {-7, 7};
  ASSERT_THAT(kernels_.DivideTowardZero(DType::kI32, integers.data(), 2, 2, *stream_), IsOk());
  Finish();
  EXPECT_THAT(sum, ElementsAre(4, 6));
  EXPECT_THAT(a, ElementsAre(12, 16));
  EXPECT_THAT(integers, ElementsAre(-3, 3));
}

TEST_F(HostFold, RefusesBeforeAnythingIsEnqueued) {
  const auto is_invalid = StatusIs(absl::StatusCode::kInvalidArgument);
  std::vector<float> data(1);
  const std::vector<const void*> one = {data.data()}, nine(9, data.data());
  const auto fold = [&](DType dtype, ReduceOp op, const std::vector<const void*>& sources, double factor) {
    return kernels_.Fold(dtype, op, data.data(), sources, 1, factor, *stream_);
  };
  EXPECT_THAT(fold(DType::kF32, ReduceOp::kSum, {}, 1), is_invalid);
  EXPECT_THAT(fold(DType::kF32, ReduceOp::kSum, nine, 1), is_invalid);
  EXPECT_THAT(fold(DType::kF32, ReduceOp::kXor, one, 1), is_invalid);
  EXPECT_THAT(fold(DType::kF32, ReduceOp::kMax, one, 2), is_invalid);
  EXPECT_THAT(fold(DType::kI32, ReduceOp::kSum, one, 2), is_invalid);
  EXPECT_THAT(kernels_.Scale(DType::kI32, data.data(), data.data(), 1, 2, *stream_), is_invalid);
  EXPECT_THAT(kernels_.DivideTowardZero(DType::kF32, data.data(), 1, 2, *stream_), is_invalid);
  Finish();
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep
