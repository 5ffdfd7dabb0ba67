#include "reducer/pipeline/cast_tensors.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "base/types/float16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
TensorView View(std::vector<T>& memory, DType dtype, const std::vector<int64_t>& shape,
                const std::vector<int64_t>& strides = {}) {
  return TensorView::Create(memory.data(), dtype, shape, strides, DeviceId()).value();
}

TEST(CastTensors, MakesLowPrecisionCopiesRoundedOnce) {
  std::vector<float> weight = {1, 257, -3.5F, 1e30F};  // 257 is between two bfloat16
  std::vector<float> bias = {0.1F, 2};
  std::vector<BFloat16> low_weight(4);
  std::vector<Float16> low_bias(2);
  LOCKSTEP_ASSERT_OK(CastTensors({View(weight, DType::kF32, {2, 2}), View(bias, DType::kF32, {2})},
                                 {View(low_weight, DType::kBF16, {2, 2}), View(low_bias, DType::kF16, {2})}));
  for (size_t i = 0; i < weight.size(); ++i) EXPECT_EQ(low_weight[i].bits(), BFloat16(weight[i]).bits());
  for (size_t i = 0; i < bias.size(); ++i) EXPECT_EQ(low_bias[i].bits(), Float16(bias[i]).bits());

  // And back, as gradients: exact.
  std::vector<float> back(4);
  LOCKSTEP_ASSERT_OK(CastTensors({View(low_weight, DType::kBF16, {2, 2})}, {View(back, DType::kF32, {2, 2})}));
  EXPECT_THAT(back, ElementsAre(1, 256, -3.5F, static_cast<float>(BFloat16(1e30F))));
}

TEST(CastTensors, OfOneDtypeCopies) {
  std::vector<int64_t> counts = {1, 2, 3};
  std::vector<int64_t> copies(3);
  LOCKSTEP_ASSERT_OK(CastTensors({View(counts, DType::kI64, {3})}, {View(copies, DType::kI64, {3})}));
  EXPECT_EQ(copies, counts);
}

TEST(CastTensors, KeepsElementsAtTheirPlaceInAnyLayout) {
  const struct {
    std::vector<int64_t> source_strides;
    std::vector<int64_t> target_strides;
  } cases[] = {
      {{3, 1}, {3, 1}},  // row-major
      {{1, 2}, {1, 2}},  // transposed on both sides
      {{4, 1}, {3, 1}},  // gaps in the source
      {{3, 1}, {5, 1}},  // in the target
      {{1, 4}, {3, 1}},  // transposed and with gaps, into row-major
      {{3, 1}, {2, 6}},
  };
  for (const auto& layout : cases) {
    std::vector<float> source(20, -1);
    std::vector<double> target(20, -2);
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 3; ++k) {
        source[i * layout.source_strides[0] + k * layout.source_strides[1]] = static_cast<float>(10 * i + k);
      }
    }
    LOCKSTEP_ASSERT_OK(CastTensors({View(source, DType::kF32, {2, 3}, layout.source_strides)},
                                   {View(target, DType::kF64, {2, 3}, layout.target_strides)}));
    int written = 0;
    for (const double value : target) written += value != -2;
    EXPECT_EQ(written, 6);
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 3; ++k) {
        EXPECT_EQ(target[i * layout.target_strides[0] + k * layout.target_strides[1]], 10 * i + k);
      }
    }
  }
}

TEST(CastTensors, OfNothingIsNothing) {
  LOCKSTEP_EXPECT_OK(CastTensors({}, {}));
  std::vector<float> none;
  std::vector<BFloat16> low_none;
  LOCKSTEP_EXPECT_OK(CastTensors({View(none, DType::kF32, {0, 3})}, {View(low_none, DType::kBF16, {0, 3})}));
}

TEST(CastTensors, RefusesAPairThatDoesNotFitAndWritesNothing) {
  std::vector<float> source = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<Float16> target(12, Float16(-1.0F));
  const TensorView good_source = View(source, DType::kF32, {2, 3});
  const TensorView good_target = View(target, DType::kF16, {2, 3});
  std::vector<int32_t> integers(6);
  const DeviceId cuda = {DeviceKind::kCuda, 0};
  const TensorView on_device = TensorView::Create(target.data(), DType::kF16, {2, 3}, {}, cuda).value();
  const struct {
    TensorView source;
    TensorView target;
    const char* says;
  } cases[] = {
      {good_source, View(target, DType::kF16, {3, 2}), "of different shapes"},
      {good_source, View(target, DType::kF16, {6}), "of different shapes"},
      {good_source, View(target, DType::kF16, {2, 3}, {1, 2}), "of different layouts"},
      {View(source, DType::kF32, {2, 3}, {4, 1}), View(target, DType::kF16, {2, 3}, {5, 1}), "of different layouts"},
      {View(source, DType::kF32, {2, 3}, {4, 1}), View(target, DType::kF16, {2, 3}, {1, 2}), "of different layouts"},
      {good_source, on_device, "not both on the host"},
      {View(integers, DType::kI32, {2, 3}), good_target, "i32"},
      {good_source, View(source, DType::kBF16, {2, 3}), "they share memory"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(CastTensors({good_source, bad.source}, {good_target, bad.target}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(HasSubstr("cast: tensor 1 from"), HasSubstr(bad.says))));
    for (const Float16 value : target) EXPECT_EQ(static_cast<float>(value), -1);
  }
  EXPECT_THAT(CastTensors({good_source}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 sources and 0 targets")));
}

}  // namespace
}  // namespace lockstep
