#include "kernels/cpu/reduce.h"

#include <cstdlib>
#include <string>
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
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

auto Refused(const std::string& why) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)); }

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
  EXPECT_THAT(CombineFor(DType::kBF16, ReduceOp::kPremulSum), Refused("a sum and a scaling"));
}

TEST(CombineFor, RefusesWhatHasNoMeaning) {
  EXPECT_THAT(CombineFor(DType::kComplex64, ReduceOp::kMin), Refused("complex64"));
  EXPECT_THAT(CombineFor(DType::kF32, ReduceOp::kXor), Refused("f32"));
  EXPECT_THAT(CombineFor(static_cast<DType>(200), ReduceOp::kSum), Refused("200"));
  EXPECT_THAT(CombineFor(DType::kF32, static_cast<ReduceOp>(77)), Refused("77"));
}

TEST(ReduceManyFor, WritesEveryTargetInPlaceOfSourcesToo) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReduceManyFunction sum, ReduceManyFor(DType::kF32, ReduceOp::kSum));
  std::vector<float> a = {1, 2, 3}, b = {10, 20, 30}, c = {100, 200, 300}, aside(3);
  const void* sources[] = {a.data(), b.data(), c.data()};
  void* targets[] = {b.data(), aside.data()};
  sum(targets, 2, sources, 3, 3);
  EXPECT_THAT(a, ElementsAre(1, 2, 3));
  EXPECT_THAT(b, ElementsAre(111, 222, 333));
  EXPECT_THAT(aside, ElementsAre(111, 222, 333));
  EXPECT_THAT(c, ElementsAre(100, 200, 300));
}

TEST(ReduceManyFor, FoldsFromTheFirstSourceOn) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReduceManyFunction sum, ReduceManyFor(DType::kF32, ReduceOp::kSum));
  // (1e30 - 1e30) + 1, where 1e30 + (-1e30 + 1) would be 0.
  const std::vector<float> large(70, 1e30f), minus_large(70, -1e30f), one(70, 1);
  const void* sources[] = {large.data(), minus_large.data(), one.data()};
  std::vector<float> folded(70);
  void* targets[] = {folded.data()};
  sum(targets, 1, sources, 3, folded.size());
  EXPECT_THAT(folded, Each(1.0f));
}

TEST(ReduceManyFor, RefusesWhatCombineForRefuses) {
  EXPECT_THAT(ReduceManyFor(DType::kF32, ReduceOp::kAvg), Refused("a sum and a scaling"));
  EXPECT_THAT(ReduceManyFor(DType::kComplex64, ReduceOp::kMin), Refused("complex64"));
  EXPECT_THAT(ReduceManyFor(static_cast<DType>(200), ReduceOp::kSum), Refused("200"));
}

TEST(ScaledSumFor, ScalesEverySourceAsItIsRead) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ScaledSumFunction sum, ScaledSumFor(DType::kF32));
  EXPECT_EQ(sum, ActiveTable().scaled_sum[static_cast<int>(DType::kF32)]);
  std::vector<float> a = {2, 4, 6}, b = {20, 40, 60}, aside(3);
  const void* sources[] = {a.data(), b.data()};
  void* targets[] = {b.data(), aside.data()};
  sum(targets, 2, sources, 2, 3, 0.5);
  EXPECT_THAT(a, ElementsAre(2, 4, 6));
  EXPECT_THAT(b, ElementsAre(11, 22, 33));
  EXPECT_THAT(aside, ElementsAre(11, 22, 33));
  // One source is scaled too.
  sum(targets, 1, sources, 1, 3, 0.5);
  EXPECT_THAT(b, ElementsAre(1, 2, 3));
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

Variant Highest() {
  Variant highest = Variant::kScalar;
  for (Variant variant : kAllVariants) {
    if (TableOf(variant) != nullptr) highest = variant;
  }
  return highest;
}

class VariantDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
};

TEST_F(VariantDeathTest, EnvironmentCapsTheVariant) {
  for (Variant variant : kAllVariants) {
    const Variant expected = variant < Highest() ? variant : Highest();
    EXPECT_EXIT(ExitWithVariantUnder(Name(variant)), testing::ExitedWithCode(static_cast<int>(expected)), "")
        << Name(variant);
  }
}

TEST_F(VariantDeathTest, UnknownValueIsLoggedWithTheKnownOnesAndIgnored) {
  EXPECT_EXIT(ExitWithVariantUnder("sse9"), testing::ExitedWithCode(static_cast<int>(Highest())),
              "LOCKSTEP_CPU=\"sse9\": takes scalar, avx2, avx512; using ");
}

TEST(Variant, ScalarIsAlwaysSupported) { EXPECT_NE(TableOf(Variant::kScalar), nullptr); }

TEST(Variant, SupportHasNoGaps) {
  // Whoever has AVX-512 has AVX2: a cap always finds its variant.
  for (Variant variant : kAllVariants) EXPECT_EQ(TableOf(variant) != nullptr, variant <= Highest()) << Name(variant);
}

TEST(Variant, ActiveTableIsTheActiveVariants) { EXPECT_EQ(&ActiveTable(), TableOf(ActiveVariant())); }

}  // namespace
}  // namespace kernels
}  // namespace lockstep
