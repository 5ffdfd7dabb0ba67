#include "reducer/plan/plan_text.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::vector<Parameter> Table() {
  std::vector<Parameter> table(6);
  for (size_t i = 0; i < table.size(); ++i) {
    table[i].name = absl::StrCat("p", i);
    table[i].shape = {4};
  }
  table[1].dtype = DType::kF16;
  table[4].ignored = true;
  return table;
}

PlanRules Rules() {
  PlanRules rules;
  rules.caps_bytes = {0};
  return rules;
}

const BucketGroups kGroups = {{5, 0}, {1}, {2, 3}};

// What reading says of the text with its third and later lines replaced.
absl::Status Read(const std::string& buckets) {
  const std::string good = PlanToText(Table(), kGroups);
  const std::string head = good.substr(0, good.find("bucket 5"));
  return PlanFromText(Table(), Rules(), head + buckets).status();
}

void ExpectBad(const absl::Status& status, const std::string& text) {
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
}

TEST(PlanText, IsOneLinePerBucket) {
  EXPECT_THAT(PlanToText(Table(), kGroups),
              MatchesRegex("lockstep-bucket-plan 1\nparameters [0-9a-f]+\nbucket 5 0\nbucket 1\nbucket 2 3\n"));
  const std::vector<std::string> lines = absl::StrSplit(PlanToText(Table(), kGroups), '\n');
  EXPECT_EQ(lines[1].size(), std::string("parameters ").size() + 16);
}

TEST(PlanText, ComesBack) {
  EXPECT_THAT(PlanFromText(Table(), Rules(), PlanToText(Table(), kGroups)), IsOkAndHolds(kGroups));
  // Also from a file whose last line has no end, or which has empty ones.
  std::string text = PlanToText(Table(), kGroups);
  text.pop_back();
  EXPECT_THAT(PlanFromText(Table(), Rules(), text), IsOkAndHolds(kGroups));
  EXPECT_THAT(PlanFromText(Table(), Rules(), absl::StrReplaceAll(text, {{"\n", "\n\n"}})), IsOkAndHolds(kGroups));
}

TEST(PlanText, ComesBackFromEveryPlanOfCaps) {
  std::vector<Parameter> table = Table();
  for (const size_t cap : {size_t{0}, size_t{20}, size_t{1000}}) {
    for (const CapsFrom from : {CapsFrom::kFirst, CapsFrom::kLast}) {
      PlanRules rules{{cap}, from};
      rules.delayed = {2};
      rules.delayed_trigger = 3;
      const BucketGroups groups = GroupsOf(PlanBuckets(table, rules));
      EXPECT_THAT(PlanFromText(table, rules, PlanToText(table, groups)), IsOkAndHolds(groups));
    }
  }
}

TEST(PlanText, IsRefusedWithAnotherTitle) {
  const std::string good = PlanToText(Table(), kGroups);
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("bucket 5 0\n"), " " + good,
        absl::StrReplaceAll(good, {{"plan 1", "plan 2"}}), absl::StrReplaceAll(good, {{"plan 1", "plan 1 "}})}) {
    ExpectBad(PlanFromText(Table(), Rules(), text).status(), "bucket plan, line 1: not \"lockstep-bucket-plan 1\"");
  }
}

TEST(PlanText, IsRefusedForAnotherTable) {
  const std::string good = PlanToText(Table(), kGroups);
  ExpectBad(PlanFromText(Table(), Rules(), "lockstep-bucket-plan 1\n").status(), "line 2: it was made for another");
  const size_t hash = good.find("parameters ") + std::string("parameters ").size();
  for (size_t digit = 0; digit < 16; ++digit) {
    std::string text = good;
    text[hash + digit] = text[hash + digit] == '0' ? '1' : '0';
    ExpectBad(PlanFromText(Table(), Rules(), text).status(), "line 2: it was made for another");
  }
  std::vector<std::vector<Parameter>> others(5, Table());
  others[0][3].name = "q3";
  others[1][3].shape = {2, 2};
  others[2][3].dtype = DType::kBF16;
  others[3].emplace_back().shape = {1};
  others[4][4].ignored = false;
  for (const std::vector<Parameter>& other : others) {
    ExpectBad(PlanFromText(other, Rules(), good).status(), "line 2: it was made for another table of parameters");
  }
}

TEST(PlanText, IsRefusedWhereALineIsNoBucket) {
  ExpectBad(Read("buckets 5 0\n"), "bucket plan, line 3: not a bucket");
  ExpectBad(Read("bucket\n"), "bucket plan, line 3: not a bucket");
  ExpectBad(Read("bucket 5 0\nbucket 1\n 2 3\n"), "bucket plan, line 5: not a bucket");
  ExpectBad(Read("bucket 5 0\nbucket 1\nbucket 2 x\n"), "bucket plan, line 5: not a number: x");
  ExpectBad(Read("bucket 5 -1\n"), "bucket plan, line 3: not a number: -1");
  ExpectBad(Read("bucket 5,0\n"), "bucket plan, line 3: not a number: 5,0");
  ExpectBad(Read("bucket 5 1e0\n"), "bucket plan, line 3: not a number: 1e0");
  ExpectBad(Read("bucket 99999999999999999999999\n"), "line 3: not a number: 99999999999999999999999");
}

TEST(PlanText, IsRefusedWithGroupsThatCannotBe) {
  ExpectBad(Read(""), "bucket plan: parameter 0 'p0' (f32[4]) is in no bucket");
  ExpectBad(Read("bucket \n"), "bucket plan: a bucket without parameters");
  ExpectBad(Read("bucket 5 0\nbucket 1\nbucket 2\n"), "parameter 3 'p3' (f32[4]) is in no bucket");
  ExpectBad(Read("bucket 5 0\nbucket 1\nbucket 2 3 6\n"), "parameter 6 is out of range: there are 6");
  ExpectBad(Read("bucket 5 0\nbucket 1\nbucket 2 3 5\n"), "parameter 5 'p5' (f32[4]) is in two buckets");
  ExpectBad(Read("bucket 5 0\nbucket 1\nbucket 2 3 4\n"), "parameter 4 'p4' (f32[4]) is in two buckets, ignored or");
  ExpectBad(Read("bucket 5 0 1\nbucket 2 3\n"),
            "parameter 1 'p1' (f16[4]) differs in dtype or device from parameter 5");
}

TEST(PlanText, IsRefusedWhereItListsDelayedParameters) {
  PlanRules rules = Rules();
  rules.delayed = {2};
  rules.delayed_trigger = 3;
  ExpectBad(PlanFromText(Table(), rules, PlanToText(Table(), kGroups)).status(),
            "parameter 2 'p2' (f32[4]) is in two buckets, ignored or delayed");
}

// Whatever a disk does to it: a plan that fits the table, or an error.
TEST(PlanText, AnyDamageIsAnErrorOrAPlanThatFits) {
  const std::string good = PlanToText(Table(), kGroups);
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(PlanFromText(Table(), Rules(), good.substr(0, at)).ok() && at + 1 < good.size()) << "cut at " << at;
    for (const char byte : {'\0', '\n', ' ', '0', '7', 'b', '\xFF'}) {
      std::string text = good;
      text[at] = byte;
      const auto groups = PlanFromText(Table(), Rules(), text);
      if (groups.ok()) {
        LOCKSTEP_EXPECT_OK(CheckGroups(Table(), Rules(), *groups));
      } else {
        EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
