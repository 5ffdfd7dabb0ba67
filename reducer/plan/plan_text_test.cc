#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/plan_testing.h"

namespace lockstep {
namespace testing {
namespace {

std::vector<Parameter> Table() {
  std::vector<Parameter> table = Vectors(6, 4);
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

absl::StatusOr<BucketGroups> FromText(const std::string& text) { return PlanFromText(Table(), Rules(), text); }

// What reading says of the text with its third and later lines replaced.
absl::Status Read(const std::string& buckets) {
  const std::string good = PlanToText(Table(), kGroups);
  const std::string head = good.substr(0, good.find("bucket 5"));
  return FromText(head + buckets).status();
}

TEST(PlanText, IsOneLinePerBucket) {
  EXPECT_THAT(
      PlanToText(Table(), kGroups),
      ::testing::MatchesRegex("lockstep-bucket-plan 1\nparameters [0-9a-f]+\nbucket 5 0\nbucket 1\nbucket 2 3\n"));
  const std::vector<std::string> lines = absl::StrSplit(PlanToText(Table(), kGroups), '\n');
  EXPECT_EQ(lines[1].size(), std::string("parameters ").size() + 16);
}

TEST(PlanText, ComesBack) {
  EXPECT_THAT(FromText(PlanToText(Table(), kGroups)), IsOkAndHolds(kGroups));
  // Also from a file whose last line has no end, or which has empty ones.
  std::string text = PlanToText(Table(), kGroups);
  text.pop_back();
  EXPECT_THAT(FromText(text), IsOkAndHolds(kGroups));
  EXPECT_THAT(FromText(absl::StrReplaceAll(text, {{"\n", "\n\n"}})), IsOkAndHolds(kGroups));
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
    EXPECT_THAT(FromText(text), InvalidArgument("bucket plan, line 1: not \"lockstep-bucket-plan 1\""));
  }
}

TEST(PlanText, IsRefusedForAnotherTable) {
  const std::string good = PlanToText(Table(), kGroups);
  EXPECT_THAT(FromText("lockstep-bucket-plan 1\n"), InvalidArgument("line 2: it was made for another"));
  const size_t hash = good.find("parameters ") + std::string("parameters ").size();
  for (size_t digit = 0; digit < 16; ++digit) {
    std::string text = good;
    text[hash + digit] = text[hash + digit] == '0' ? '1' : '0';
    EXPECT_THAT(FromText(text), InvalidArgument("line 2: it was made for another"));
  }
  std::vector<std::vector<Parameter>> others(5, Table());
  others[0][3].name = "q3";
  others[1][3].shape = {2, 2};
  others[2][3].dtype = DType::kBF16;
  others[3].emplace_back().shape = {1};
  others[4][4].ignored = false;
  for (const std::vector<Parameter>& other : others) {
    EXPECT_THAT(PlanFromText(other, Rules(), good),
                InvalidArgument("line 2: it was made for another table of parameters"));
  }
}

TEST(PlanText, IsRefusedWhereALineIsNoBucket) {
  EXPECT_THAT(Read("buckets 5 0\n"), InvalidArgument("bucket plan, line 3: not a bucket"));
  EXPECT_THAT(Read("bucket\n"), InvalidArgument("bucket plan, line 3: not a bucket"));
  EXPECT_THAT(Read("bucket 5 0\nbucket 1\n 2 3\n"), InvalidArgument("bucket plan, line 5: not a bucket"));
  EXPECT_THAT(Read("bucket 5 0\nbucket 1\nbucket 2 x\n"), InvalidArgument("bucket plan, line 5: not a number: x"));
  EXPECT_THAT(Read("bucket 5 -1\n"), InvalidArgument("bucket plan, line 3: not a number: -1"));
  EXPECT_THAT(Read("bucket 5,0\n"), InvalidArgument("bucket plan, line 3: not a number: 5,0"));
  EXPECT_THAT(Read("bucket 5 1e0\n"), InvalidArgument("bucket plan, line 3: not a number: 1e0"));
  EXPECT_THAT(Read("bucket 99999999999999999999999\n"),
              InvalidArgument("line 3: not a number: 99999999999999999999999"));
}

// What CheckGroups() refuses.
TEST(PlanText, IsRefusedWithGroupsThatCannotBe) {
  EXPECT_THAT(Read(""), InvalidArgument("bucket plan: parameter 0 'p0' (f32[4]) is in no bucket"));
  EXPECT_THAT(Read("bucket \n"), InvalidArgument("bucket plan: a bucket without parameters"));
}

TEST(PlanText, IsRefusedWhereItListsDelayedParameters) {
  PlanRules rules = Rules();
  rules.delayed = {2};
  rules.delayed_trigger = 3;
  EXPECT_THAT(PlanFromText(Table(), rules, PlanToText(Table(), kGroups)),
              InvalidArgument("parameter 2 'p2' (f32[4]) is in two buckets, ignored or delayed"));
}

// Whatever a disk does to it: a plan that fits the table, or an error.
TEST(PlanText, AnyDamageIsAnErrorOrAPlanThatFits) {
  const std::string good = PlanToText(Table(), kGroups);
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(FromText(good.substr(0, at)).ok() && at + 1 < good.size()) << "cut at " << at;
    for (const char byte : {'\0', '\n', ' ', '0', '7', 'b', '\xFF'}) {
      std::string text = good;
      text[at] = byte;
      const auto groups = FromText(text);
      if (groups.ok()) {
        LOCKSTEP_EXPECT_OK(CheckGroups(Table(), Rules(), *groups));
      } else {
        EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
