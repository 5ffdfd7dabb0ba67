#include "bench/overlap/report.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;

OverlapReport TwoRounds() {
  OverlapReport report;
  report.ranks = 2;
  report.parameters = 10;
  report.facts = {{"cpu", "a quick one"}};
  report.buckets = {{1024, 4, {0.010, 0.002, 0.001}}, {4096, 6, {0.020, 0.004, 0.003}}};
  report.rounds = {{0.020, 0.006, 0.030, 0.024, 0.020}, {0.020, 0.006, 0.029, 0.020, 0.020}};
  report.overhead = {2, 0.000005, 0.000011};
  report.memory = {4 << 20, 8 << 20, 2 << 20};
  return report;
}

TEST(OverlapFactsText, HasALineForEach) { EXPECT_EQ(OverlapFactsText(TwoRounds()), "# cpu: a quick one\n"); }

TEST(OverlapText, IsTheTable) {
  EXPECT_EQ(
      OverlapText(TwoRounds()),
      "#\n"
      "# bucket          size  parameters         ready  all-reduce alone  of it, processor time\n"
      "#                  (B)                      (ms)              (ms)                   (ms)\n"
      "       0          1024           4        10.000             2.000                  1.000\n"
      "       1          4096           6        20.000             4.000                  3.000\n"
      "#\n"
      "# of a step               median (ms)        quartiles\n"
      "compute only                   20.000     20.000 - 20.000\n"
      "communication only              6.000      6.000 - 6.000\n"
      "without overlap                29.500     29.250 - 29.750\n"
      "with overlap                   22.000     21.000 - 23.000\n"
      "exposed communication           2.000      1.000 - 3.000\n"
      "ideal                          20.000     20.000 - 20.000\n"
      "#\n"
      "# round by round               median        quartiles\n"
      "with overlap / ideal            1.100      1.050 - 1.150\n"
      "without / with overlap          1.350      1.300 - 1.400\n"
      "#\n"
      "# the reducer itself, with nothing to move: 0.500 us a parameter in mark_ready, 1.100 us with begin and end; a "
      "step 11.0 us, 0.05 % of one with overlap\n"
      "# memory of a rank for gradients and reducer: 2.0 MiB (0.50 copies of the gradients) when shared pages are "
      "divided by those who share them; 8.0 MiB (2.00 copies of the gradients) resident at most, with what it sees of "
      "other ranks'\n");
}

TEST(OverlapJson, HasEveryRoundInMilliseconds) {
  const auto json = nlohmann::json::parse(OverlapJson(TwoRounds()));
  EXPECT_EQ(json["facts"]["cpu"], "a quick one");
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["parameters"], 10);
  ASSERT_EQ(json["buckets"].size(), 2);
  EXPECT_EQ(json["buckets"][1]["bytes"], 4096);
  EXPECT_THAT(json["buckets"][1]["ready_ms"].get<double>(), DoubleEq(20));
  ASSERT_EQ(json["rounds"].size(), 2);
  EXPECT_THAT(json["rounds"][0]["serial_ms"].get<double>(), DoubleEq(30));
  EXPECT_THAT(json["rounds"][0]["overlapped_ms"].get<double>(), DoubleEq(24));
  EXPECT_THAT(json["overhead"]["step_us"].get<double>(), DoubleEq(11));
  EXPECT_EQ(json["memory"]["proportional_bytes"], 2 << 20);
}

TEST(OverlapJson, ReplacesWhatIsNotUtf8) {
  OverlapReport report = TwoRounds();
  report.facts = {{"cpu", "\xff"}};
  EXPECT_THAT(OverlapJson(report), HasSubstr("\"cpu\""));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
