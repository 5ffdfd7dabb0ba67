#include "bench/statistics.h"

#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

TEST(QuartilesOf, TakesMeasurementsInAnyOrder) {
  const Quartiles quartiles = QuartilesOf({5, 1, 4, 2, 3});
  EXPECT_DOUBLE_EQ(quartiles.low, 2);
  EXPECT_DOUBLE_EQ(quartiles.median, 3);
  EXPECT_DOUBLE_EQ(quartiles.high, 4);
}

TEST(QuartilesOf, InterpolatesBetweenTwo) {
  const Quartiles quartiles = QuartilesOf({10, 20});
  EXPECT_DOUBLE_EQ(quartiles.low, 12.5);
  EXPECT_DOUBLE_EQ(quartiles.median, 15);
  EXPECT_DOUBLE_EQ(quartiles.high, 17.5);
}

TEST(QuartilesOf, OneOrNoMeasurementHasNoSpread) {
  EXPECT_DOUBLE_EQ(QuartilesOf({7}).low, 7);
  EXPECT_DOUBLE_EQ(QuartilesOf({7}).high, 7);
  EXPECT_DOUBLE_EQ(Median({}), 0);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
