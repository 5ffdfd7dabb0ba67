#include "kernels/cpu/variant.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace lockstep {
namespace kernels {
namespace {

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
