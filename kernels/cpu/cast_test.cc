#include "kernels/cpu/cast.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::kernels {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

auto Refused(const std::string& why) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)); }

TEST(CastScaled, ConvertsAndScales) {
  const std::vector<float> source = {2, -4, 1024};
  std::vector<uint16_t> target(3);
  EXPECT_THAT(CastScaled(DType::kBF16, target.data(), DType::kF32, source.data(), 3, 0.5), IsOk());
  EXPECT_THAT(target, ElementsAre(BFloat16(1).bits(), BFloat16(-2).bits(), BFloat16(512).bits()));
}

TEST(CastScaled, FactorOfOneToTheSameDTypeCopiesBytesOfEveryDType) {
  for (DType dtype : kAllDTypes) {
    // 0xFF...: a NaN with a payload where the dtype has one.
    const std::vector<uint8_t> source(3 * SizeOf(dtype), 0xFF);
    std::vector<uint8_t> target(source.size());
    EXPECT_THAT(CastScaled(dtype, target.data(), dtype, source.data(), 3, 1.0), IsOk()) << Name(dtype);
    EXPECT_EQ(target, source) << Name(dtype);
    EXPECT_THAT(CastScaled(dtype, target.data(), dtype, target.data(), 3, 1.0), IsOk()) << Name(dtype);
    EXPECT_EQ(target, source) << Name(dtype);
  }
}

TEST(CastScaled, FactorOnOneComplexDTypeScales) {
  const std::vector<float> source = {1, 2, 3, 4};
  std::vector<float> target(4);
  EXPECT_THAT(CastScaled(DType::kComplex64, target.data(), DType::kComplex64, source.data(), 2, 2.0), IsOk());
  EXPECT_THAT(target, ElementsAre(2, 4, 6, 8));
}

TEST(CastScaled, NothingToCastMayBeNull) {
  EXPECT_THAT(CastScaled(DType::kF16, nullptr, DType::kF64, nullptr, 0, 3.0), IsOk());
  EXPECT_THAT(CastScaled(DType::kI64, nullptr, DType::kI64, nullptr, 0, 1.0), IsOk());
}

TEST(CastScaled, RefusesOtherConversions) {
  uint64_t source = 7;
  uint64_t target = 42;
  EXPECT_THAT(CastScaled(DType::kF32, &target, DType::kI32, &source, 1, 1.0), Refused("cannot convert i32 to f32"));
  EXPECT_THAT(CastScaled(DType::kI64, &target, DType::kU64, &source, 1, 1.0), Refused("cannot convert u64 to i64"));
  EXPECT_THAT(CastScaled(DType::kF32, &target, DType::kComplex64, &source, 1, 1.0),
              Refused("cannot convert complex64 to f32"));
  EXPECT_THAT(CastScaled(DType::kI32, &target, DType::kI32, &source, 1, 0.5), Refused("cannot scale i32 by 0.5"));
  EXPECT_THAT(CastScaled(DType::kBool, &target, DType::kBool, &source, 1, 2.0), Refused("cannot scale bool by 2"));
  EXPECT_THAT(CastScaled(static_cast<DType>(200), &target, static_cast<DType>(200), &source, 1, 1.0),
              Refused("dtype(200)"));
  EXPECT_EQ(target, 42u);
}

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
  EXPECT_THAT(Scale(static_cast<DType>(200), &value, &value, 1, 2.0), Refused("dtype(200)"));
  EXPECT_EQ(value, 1);
}

TEST(DivideTowardZero, RoundsTowardZero) {
  std::vector<int32_t> values = {7, -7, 6, -1, INT32_MIN, INT32_MAX};
  EXPECT_THAT(DivideTowardZero(DType::kI32, values.data(), values.size(), 3), IsOk());
  EXPECT_THAT(values, ElementsAre(2, -2, 2, 0, -715827882, 715827882));
}

TEST(DivideTowardZero, RefusesOtherDTypesAndDivisors) {
  float value = 1;
  EXPECT_THAT(DivideTowardZero(DType::kF32, &value, 1, 2), Refused("f32 toward zero: it is no integer"));
  EXPECT_THAT(DivideTowardZero(DType::kBool, &value, 1, 2), Refused("bool"));
  EXPECT_THAT(DivideTowardZero(static_cast<DType>(99), &value, 1, 2), Refused("dtype(99)"));
  for (int64_t divisor : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_THAT(DivideTowardZero(DType::kI32, &value, 1, divisor), Refused("the divisor must be positive"));
  }
  EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace lockstep::kernels
