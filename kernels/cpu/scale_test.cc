#include "kernels/cpu/scale.h"

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace kernels {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Scale, MultipliesInPlaceAndOutOfPlace) {
  std::vector<float> values = {1, -2, 3};
  std::vector<float> target(3);
  EXPECT_THAT(Scale(DType::kF32, target.data(), values.data(), 3, 0.5), IsOk());
  EXPECT_THAT(target, ElementsAre(0.5f, -1.0f, 1.5f));
  EXPECT_THAT(Scale(DType::kF32, values.data(), values.data(), 3, 2.0), IsOk());
  EXPECT_THAT(values, ElementsAre(2, -4, 6));
}

TEST(Scale, MultipliesBothPartsOfComplexNumbers) {
  std::vector<double> parts = {1, 2, 3, 4, 5, 6};
  EXPECT_THAT(Scale(DType::kComplex128, parts.data(), parts.data(), 3, 10.0), IsOk());
  EXPECT_THAT(parts, ElementsAre(10, 20, 30, 40, 50, 60));
}

TEST(Scale, NothingToScaleMayBeNull) { EXPECT_THAT(Scale(DType::kF16, nullptr, nullptr, 0, 3.0), IsOk()); }

TEST(Scale, RefusesDTypesWithoutFractions) {
  int32_t value = 1;
  for (DType dtype : kAllDTypes) {
    if (IsFloat(dtype) || IsComplex(dtype)) continue;
    EXPECT_THAT(Scale(dtype, &value, &value, 1, 2.0),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("cannot scale"), HasSubstr(Name(dtype)))));
  }
  EXPECT_THAT(Scale(static_cast<DType>(200), &value, &value, 1, 2.0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dtype(200)")));
  EXPECT_EQ(value, 1);
}

TEST(DivideTowardZero, RoundsTowardZero) {
  std::vector<int32_t> values = {7, -7, 6, -1, INT32_MIN, INT32_MAX};
  EXPECT_THAT(DivideTowardZero(DType::kI32, values.data(), values.size(), 3), IsOk());
  EXPECT_THAT(values, ElementsAre(2, -2, 2, 0, -715827882, 715827882));
}

TEST(DivideTowardZero, RefusesOtherDTypesAndDivisors) {
  float value = 1;
  EXPECT_THAT(DivideTowardZero(DType::kF32, &value, 1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("f32 toward zero: it is no integer")));
  EXPECT_THAT(DivideTowardZero(DType::kBool, &value, 1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("bool")));
  EXPECT_THAT(DivideTowardZero(static_cast<DType>(99), &value, 1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dtype(99)")));
  for (int64_t divisor : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_THAT(DivideTowardZero(DType::kI32, &value, 1, divisor),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the divisor must be positive")));
  }
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep
