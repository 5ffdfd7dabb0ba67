#include "kernels/cpu/reduce.h"

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/variant.h"

namespace lockstep::kernels {
namespace {

using testing::AllOf;
using testing::HasSubstr;

auto Refused(const std::string& why) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)); }

// What those do: reduce_conformance_test.cc.
TEST(Reductions, AreTheActiveVariantsFunctionsForEveryDefinedCombination) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      if (!IsDefined(dtype, op) || op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) continue;
      EXPECT_THAT(CombineFor(dtype, op),
                  IsOkAndHolds(ActiveTable().combine[static_cast<int>(dtype)][static_cast<int>(op)]))
          << Name(op) << " of " << Name(dtype);
      EXPECT_THAT(ReduceManyFor(dtype, op),
                  IsOkAndHolds(ActiveTable().reduce_many[static_cast<int>(dtype)][static_cast<int>(op)]))
          << Name(op) << " of " << Name(dtype);
    }
    if (IsFloat(dtype) || IsComplex(dtype)) {
      EXPECT_THAT(ScaledSumFor(dtype), IsOkAndHolds(ActiveTable().scaled_sum[static_cast<int>(dtype)])) << Name(dtype);
    }
  }
}

TEST(CombineFor, AverageAndPremulSumAreNoCombination) {
  EXPECT_THAT(CombineFor(DType::kF32, ReduceOp::kAvg),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(Name(ReduceOp::kAvg)), HasSubstr("f32"), HasSubstr("a sum and a scaling"))));
  EXPECT_THAT(CombineFor(DType::kBF16, ReduceOp::kPremulSum), Refused("a sum and a scaling"));
}

TEST(CombineFor, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(CombineFor(DType::kComplex64, ReduceOp::kMin), Refused("complex64"));
  EXPECT_THAT(CombineFor(DType::kF32, ReduceOp::kXor), Refused("f32"));
  EXPECT_THAT(CombineFor(static_cast<DType>(200), ReduceOp::kSum), Refused("200"));
  EXPECT_THAT(CombineFor(DType::kF32, static_cast<ReduceOp>(77)), Refused("77"));
}

TEST(ReduceManyFor, RefusesWhatCombineForRefuses) {
  EXPECT_THAT(ReduceManyFor(DType::kF32, ReduceOp::kAvg), Refused("a sum and a scaling"));
  EXPECT_THAT(ReduceManyFor(DType::kComplex64, ReduceOp::kMin), Refused("complex64"));
  EXPECT_THAT(ReduceManyFor(static_cast<DType>(200), ReduceOp::kSum), Refused("200"));
}

TEST(ScaledSumFor, RefusesDTypesWithoutFractions) {
  for (DType dtype : {DType::kI32, DType::kU8, DType::kBool}) {
    EXPECT_THAT(ScaledSumFor(dtype), Refused(Name(dtype)));
  }
  EXPECT_THAT(ScaledSumFor(static_cast<DType>(200)), Refused("200"));
}

// ---- The variant of whose kernels all these are.

// The choice is made once in a process, so each case looks at it in a child, and leaves with the variant as its status.
[[noreturn]] void ExitWithVariantUnder(const char* value) {
  setenv("LOCKSTEP_CPU", value, 1);
  std::exit(static_cast<int>(ActiveVariant()));
}

// The highest that this processor has, of those up to `cap`.
Variant Highest(Variant cap) {
  Variant highest = Variant::kScalar;
  for (Variant variant : kAllVariants) {
    if (variant <= cap && TableOf(variant) != nullptr) highest = variant;
  }
  return highest;
}

class VariantDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(VariantDeathTest, EnvironmentCapsTheVariant) {
  for (Variant variant : kAllVariants) {
    EXPECT_EXIT(ExitWithVariantUnder(Name(variant)), testing::ExitedWithCode(static_cast<int>(Highest(variant))), "")
        << Name(variant);
  }
}

TEST_F(VariantDeathTest, UnknownValueIsLoggedWithTheKnownOnesAndIgnored) {
  EXPECT_EXIT(ExitWithVariantUnder("sse9"), testing::ExitedWithCode(static_cast<int>(Highest(Variant::kAvx512))),
              "LOCKSTEP_CPU=\"sse9\": takes scalar, neon, neon_fp16, neon_bf16, avx2, avx512; using ");
}

TEST(Variant, ScalarIsAlwaysSupported) { EXPECT_NE(TableOf(Variant::kScalar), nullptr); }

#if defined(__x86_64__)
constexpr Variant kFirst = Variant::kAvx2;
constexpr Variant kLast = Variant::kAvx512;
#else
constexpr Variant kFirst = Variant::kNeon;
constexpr Variant kLast = Variant::kNeonBf16;
#endif

TEST(Variant, AProcessorHasTheVariantsOfItsArchitectureWithoutGaps) {
  for (Variant variant : kAllVariants) {
    // A processor with AVX-512 has AVX2.
    const bool of_architecture = variant == Variant::kScalar || (variant >= kFirst && variant <= kLast);
    EXPECT_EQ(TableOf(variant) != nullptr, of_architecture && variant <= Highest(kLast)) << Name(variant);
  }
}

TEST(Variant, ActiveTableIsTheActiveVariants) { EXPECT_EQ(&ActiveTable(), TableOf(ActiveVariant())); }

}  // namespace
}  // namespace lockstep::kernels
