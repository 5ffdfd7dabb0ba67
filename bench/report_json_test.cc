#include "bench/report_json.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

TEST(ReportJson, HoldsEveryNumber) {
  Report report;
  report.ranks = 2;
  report.facts = {{"cpu", "a \"quoted\" name"}};
  Row row;
  row.size = {2, 2, 8};
  row.out_of_place = {2e-6, 100, 0};
  row.in_place = Measurement{4e-6, 50, 1};
  Row barrier;
  barrier.exercise.collective = Collective::kBarrier;
  report.rows = {row, barrier};
  LimitRow limit;
  limit.bytes = 8;
  limit.lockstep_seconds = 3e-6;
  limit.exchange_ratio = {1, 2, 3};
  report.limits = {limit};

  const nlohmann::json json = nlohmann::json::parse(ReportJson(report), nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["facts"]["cpu"], "a \"quoted\" name");
  EXPECT_EQ(json["ranks"], 2);
  ASSERT_EQ(json["rows"].size(), 2);
  EXPECT_EQ(json["rows"][0]["collective"], "all_reduce");
  EXPECT_EQ(json["rows"][0]["size_bytes"], 8);
  EXPECT_EQ(json["rows"][0]["root"], -1);
  EXPECT_DOUBLE_EQ(json["rows"][0]["out_of_place"]["time_us"].get<double>(), 2.0);
  EXPECT_EQ(json["rows"][0]["in_place"]["wrong"], 1);
  EXPECT_TRUE(json["rows"][1]["in_place"].is_null());
  EXPECT_DOUBLE_EQ(json["limits"][0]["both_ways_ratio"]["median"].get<double>(), 2.0);
  EXPECT_TRUE(json["limits"][0]["one_way_us"].is_null());
}

TEST(ReportJson, TextThatIsNotUtf8DoesNotStopIt) {
  Report report;
  report.facts = {{"cpu", "\xff"}};
  EXPECT_FALSE(nlohmann::json::parse(ReportJson(report), nullptr, false).is_discarded());
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
