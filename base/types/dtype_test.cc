#include "base/types/dtype.h"

#include <complex>
#include <set>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/bfloat16.h"
#include "base/types/float16.h"
#include "base/types/float8.h"
#include "base/types/narrow_float_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, exponent_bits, mantissa_bits, has_infinity, dlpack) \
  NARROW_FLOAT_TESTS(Type, NarrowFormat{exponent_bits, mantissa_bits, has_infinity, FormatOf(DType::k##id).nan()})
#include "base/types/dtypes.inc"

constexpr DType kNoDType = static_cast<DType>(200);

TEST(DTypeTest, NumbersAreTheWireFormat) {
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_EQ(static_cast<int>(kAllDTypes[i]), i);
  EXPECT_EQ(static_cast<int>(DType::kF32), 9);
  EXPECT_EQ(static_cast<int>(DType::kComplex128), 14);
}

TEST(DTypeTest, SizesAreThoseOfTheElements) {
  EXPECT_EQ(SizeOf(DType::kBool), sizeof(bool));
  EXPECT_EQ(SizeOf(DType::kU8), 1);
  EXPECT_EQ(SizeOf(DType::kI8), 1);
  EXPECT_EQ(SizeOf(DType::kI32), 4);
  EXPECT_EQ(SizeOf(DType::kU32), 4);
  EXPECT_EQ(SizeOf(DType::kI64), 8);
  EXPECT_EQ(SizeOf(DType::kU64), 8);
  EXPECT_EQ(SizeOf(DType::kF16), 2);
  EXPECT_EQ(SizeOf(DType::kBF16), 2);
  EXPECT_EQ(SizeOf(DType::kF32), sizeof(float));
  EXPECT_EQ(SizeOf(DType::kF64), sizeof(double));
  EXPECT_EQ(SizeOf(DType::kF8E4M3), 1);
  EXPECT_EQ(SizeOf(DType::kF8E5M2), 1);
  EXPECT_EQ(SizeOf(DType::kComplex64), sizeof(std::complex<float>));
  EXPECT_EQ(SizeOf(DType::kComplex128), sizeof(std::complex<double>));
}

TEST(DTypeTest, NamesAreDistinctAndParseBack) {
  std::set<std::string> names;
  for (DType dtype : kAllDTypes) {
    EXPECT_TRUE(names.insert(Name(dtype)).second) << Name(dtype);
    EXPECT_THAT(ParseDType(Name(dtype)), IsOkAndHolds(dtype));
  }
  EXPECT_EQ(Name(DType::kBF16), "bf16");
  EXPECT_EQ(Name(DType::kF8E4M3), "f8e4m3");
}

TEST(DTypeTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"float", "F32", "", "f32 "}) {
    EXPECT_THAT(ParseDType(name), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr(std::string("\"") + name + "\""), HasSubstr("bf16"))));
  }
}

TEST(DTypeTest, ANumberThatIsNoDTypeHasNoSizeAndNoKind) {
  EXPECT_FALSE(IsValid(kNoDType));
  EXPECT_FALSE(IsValid(static_cast<DType>(kDTypeCount)));
  EXPECT_EQ(SizeOf(kNoDType), 0);
  EXPECT_EQ(Name(kNoDType), "dtype(200)");
  EXPECT_FALSE(IsFloat(kNoDType) || IsInteger(kNoDType) || IsComplex(kNoDType));
}

TEST(DTypeTest, EveryDTypeButBoolIsOfExactlyOneKind) {
  for (DType dtype : kAllDTypes) {
    EXPECT_TRUE(IsValid(dtype));
    const int kinds = IsFloat(dtype) + IsInteger(dtype) + IsComplex(dtype);
    EXPECT_EQ(kinds, dtype == DType::kBool ? 0 : 1) << Name(dtype);
  }
  EXPECT_TRUE(IsFloat(DType::kF8E5M2));
  EXPECT_TRUE(IsInteger(DType::kU64));
  EXPECT_TRUE(IsComplex(DType::kComplex64));
  EXPECT_EQ(RealOf(DType::kComplex64), DType::kF32);
  EXPECT_EQ(RealOf(DType::kComplex128), DType::kF64);
  EXPECT_EQ(RealOf(DType::kBF16), DType::kBF16);
}

}  // namespace
}  // namespace lockstep
