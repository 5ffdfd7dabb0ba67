#include "bench/compare_json.h"

#include <nlohmann/json.hpp>

#include "bench/compare_result.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

TEST(ComparisonJson, HasEveryRoundAndTheRatios) {
  ContestResult contest;
  contest.transport = "tcp";
  contest.sizes = {8, 1024};
  contest.contenders.resize(2);
  contest.contenders[0].name = "lockstep";
  contest.contenders[0].kind = ContenderKind::kLockstep;
  contest.contenders[0].congestion_control = "reno";
  contest.contenders[0].trials = {{7, {2e-6, 4e-6}}, {5, {1e-3, 1e-3}}};
  contest.contenders[1].name = "other";
  contest.contenders[1].dropped = "at 1K: gone \xff";  // no UTF-8
  contest.contenders[1].trials = {{9, {1e-6, 1e-6}}, {0, {}}};
  ComparisonReport report;
  report.facts = {{"cpu", "fast"}};
  report.missing = {"gloo is not installed"};
  report.contests = {contest};

  const auto json = nlohmann::json::parse(ComparisonJson(report));
  EXPECT_EQ(json["facts"]["cpu"], "fast");
  EXPECT_EQ(json["missing"][0], "gloo is not installed");
  EXPECT_EQ(json["contests"][0]["transport"], "tcp");
  EXPECT_EQ(json["contests"][0]["ranks"], 2);
  const auto& lockstep = json["contests"][0]["contenders"][0];
  EXPECT_EQ(lockstep["kind"], "lockstep");
  EXPECT_EQ(lockstep["congestion_control"], "reno");
  EXPECT_TRUE(lockstep["dropped"].is_null());
  ASSERT_EQ(lockstep["sizes"].size(), 2);
  EXPECT_TRUE(lockstep["sizes"][0]["lockstep_ratio"].empty());
  const auto& other = json["contests"][0]["contenders"][1];
  EXPECT_EQ(other["kind"], "peer");
  EXPECT_TRUE(other["dropped"].is_string());
  ASSERT_EQ(other["sizes"].size(), 1);
  EXPECT_EQ(other["sizes"][0]["bytes"], 8);
  EXPECT_EQ(other["sizes"][0]["calls"], 9);
  EXPECT_DOUBLE_EQ(other["sizes"][0]["median_us"], 1);
  ASSERT_EQ(other["sizes"][0]["rounds_us"].size(), 2);
  EXPECT_DOUBLE_EQ(other["sizes"][0]["lockstep_ratio"]["lockstep"]["median"], 3);
  EXPECT_DOUBLE_EQ(lockstep["sizes"][1]["busbw_gbps"], 1024e-9 / 1e-3);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
