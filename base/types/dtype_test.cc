#include "base/types/dtype.h"

#include <set>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr DType kNoDType = static_cast<DType>(200);

TEST(DTypeTest, NumbersAreTheWireFormat) {
  for (int i = 0; i < kDTypeCount; ++i) EXPECT_EQ(static_cast<int>(kAllDTypes[i]), i);
  EXPECT_EQ(static_cast<int>(DType::kF32), 9);
  EXPECT_EQ(static_cast<int>(DType::kComplex128), 14);
}

TEST(DTypeTest, SizesAreThoseOfTheElements) {
  const size_t sizes[kDTypeCount] = {1, 1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 8, 16};
  for (DType dtype : kAllDTypes) EXPECT_EQ(SizeOf(dtype), sizes[static_cast<int>(dtype)]) << Name(dtype);
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

// Written out: what is compiled for them, and what judges that, follow the table.
TEST(DTypeTest, FloatsAreLaidOutAsTheirFormatsSay) {
  const struct {
    DType dtype;
    int bits;
    uint64_t overflow;
    uint64_t nan;
    int bias;
  } formats[] = {
      {DType::kF16, 16, 0x7C00, 0x7E00, 15},
      {DType::kBF16, 16, 0x7F80, 0x7FC0, 127},
      {DType::kF32, 32, 0x7F800000, 0x7FC00000, 127},
      {DType::kF64, 64, 0x7FF0000000000000, 0x7FF8000000000000, 1023},
      {DType::kF8E4M3, 8, 0x7F, 0x7F, 7},
      {DType::kF8E5M2, 8, 0x7C, 0x7E, 15},
  };
  for (const auto& of : formats) {
    const FloatFormat format = FormatOf(of.dtype);
    EXPECT_EQ(format.bits(), of.bits) << Name(of.dtype);
    EXPECT_EQ(format.overflow(), of.overflow) << Name(of.dtype);
    EXPECT_EQ(format.nan(), of.nan) << Name(of.dtype);
    EXPECT_EQ(format.bias(), of.bias) << Name(of.dtype);
  }
}

TEST(DTypeTest, EveryDTypeButBoolIsOfExactlyOneKind) {
  for (DType dtype : kAllDTypes) {
    EXPECT_TRUE(IsValid(dtype));
    const int kinds = IsFloat(dtype) + IsInteger(dtype) + IsComplex(dtype);
    EXPECT_EQ(kinds, dtype == DType::kBool ? 0 : 1) << Name(dtype);
  }
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2}) {
    EXPECT_TRUE(IsFloat(dtype)) << Name(dtype);
  }
  for (DType dtype : {DType::kU8, DType::kI8, DType::kI32, DType::kU32, DType::kI64, DType::kU64}) {
    EXPECT_TRUE(IsInteger(dtype)) << Name(dtype);
  }
  for (DType dtype : {DType::kComplex64, DType::kComplex128}) EXPECT_TRUE(IsComplex(dtype)) << Name(dtype);
  EXPECT_EQ(RealOf(DType::kComplex64), DType::kF32);
  EXPECT_EQ(RealOf(DType::kComplex128), DType::kF64);
  EXPECT_EQ(RealOf(DType::kBF16), DType::kBF16);
}

}  // namespace
}  // namespace lockstep
