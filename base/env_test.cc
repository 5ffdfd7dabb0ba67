#include "base/env.h"

#include <cstdlib>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/clipped.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Eq;
using testing::HasSubstr;

class EnvTest : public testing::Test {
 protected:
  ~EnvTest() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }

  void Set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }

 private:
  std::vector<std::string> set_;
};

TEST_F(EnvTest, VariablesAreSortedAndOurs) {
  std::string before;
  for (const char* name : EnvironmentVariables()) {
    EXPECT_THAT(name, testing::StartsWith("LOCKSTEP_"));
    EXPECT_LT(before, name);
    before = name;
  }
}

TEST_F(EnvTest, UnsetAndEmptyAreTheSame) {
  unsetenv("LOCKSTEP_JOB_ID");
  EXPECT_EQ(GetEnv("LOCKSTEP_JOB_ID"), absl::nullopt);
  Set("LOCKSTEP_JOB_ID", "");
  EXPECT_EQ(GetEnv("LOCKSTEP_JOB_ID"), absl::nullopt);
  EXPECT_THAT(GetEnvInt("LOCKSTEP_JOB_ID", 0, 1), IsOkAndHolds(Eq(absl::nullopt)));
  EXPECT_THAT(GetEnvBool("LOCKSTEP_JOB_ID"), IsOkAndHolds(Eq(absl::nullopt)));
  Set("LOCKSTEP_JOB_ID", " job = 7 ");
  EXPECT_EQ(GetEnv("LOCKSTEP_JOB_ID"), " job = 7 ");
}

TEST_F(EnvTest, AViewIntoALongerNameIsEnough) {
  Set("LOCKSTEP_RANK", "3");
  EXPECT_EQ(GetEnv(absl::string_view("LOCKSTEP_RANKS").substr(0, 13)), "3");
}

TEST_F(EnvTest, IntegersAreCheckedAgainstTheirRange) {
  const auto parse = [&](const std::string& value) {
    Set("LOCKSTEP_TIMEOUT_MS", value);
    return GetEnvInt("LOCKSTEP_TIMEOUT_MS", 1, 86400000);
  };
  EXPECT_THAT(parse("1"), IsOkAndHolds(Eq(1)));
  EXPECT_THAT(parse("86400000"), IsOkAndHolds(Eq(86400000)));
  for (const char* bad :
       {"0", "-5", "86400001", "5s", "1e3", "0x10", "99999999999999999999", "one", " 5", "5 ", "+5", "-", "- 5"}) {
    EXPECT_THAT(parse(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr(std::string("LOCKSTEP_TIMEOUT_MS=\"") + bad + "\""),
                                           HasSubstr("an integer from 1 to 86400000"))))
        << bad;
  }
}

TEST_F(EnvTest, IntegersReachTheEndsOfTheirType) {
  Set("LOCKSTEP_TIMEOUT_MS", "-9223372036854775808");
  EXPECT_THAT(GetEnvInt("LOCKSTEP_TIMEOUT_MS", std::numeric_limits<int64_t>::min(), 0),
              IsOkAndHolds(Eq(std::numeric_limits<int64_t>::min())));
}

TEST_F(EnvTest, BooleansHaveFourSpellingsEach) {
  const auto parse = [&](const std::string& value) {
    Set("LOCKSTEP_CHECKED", value);
    return GetEnvBool("LOCKSTEP_CHECKED");
  };
  for (const char* yes : {"1", "true", "yes", "on", "TRUE", "On"}) EXPECT_THAT(parse(yes), IsOkAndHolds(Eq(true)));
  for (const char* no : {"0", "false", "no", "off", "False"}) EXPECT_THAT(parse(no), IsOkAndHolds(Eq(false)));
  for (const char* bad : {"2", "y", "enable", " 1"}) {
    EXPECT_THAT(parse(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(std::string("LOCKSTEP_CHECKED=\"") + bad + "\": takes 0 or 1")));
  }
}

TEST_F(EnvTest, WordsAreThoseAndNoOthers) {
  const auto parse = [&](const std::string& value) {
    Set("LOCKSTEP_CPU", value);
    return GetEnvWord("LOCKSTEP_CPU", {"scalar", "avx2"});
  };
  EXPECT_THAT(parse("scalar"), IsOkAndHolds(Eq(0)));
  EXPECT_THAT(parse("avx2"), IsOkAndHolds(Eq(1)));
  EXPECT_THAT(parse(""), IsOkAndHolds(Eq(absl::nullopt)));
  for (const char* bad : {"AVX2", "avx", "avx2 ", "scalar, avx2"}) {
    EXPECT_THAT(parse(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(std::string("LOCKSTEP_CPU=\"") + bad + "\": takes scalar, avx2")));
  }
}

TEST_F(EnvTest, LongValuesAreNotEchoedWhole) {
  Set("LOCKSTEP_TIMEOUT_MS", std::string(100'000, '7'));
  const absl::Status status = GetEnvInt("LOCKSTEP_TIMEOUT_MS", 1, 86400000).status();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("777... (100000 bytes)"), testing::SizeIs(testing::Lt(300))));
}

TEST_F(EnvTest, WhatIsEchoedIsClipped) {
  EXPECT_EQ(Clipped("as it \"is\" \xC3\xA4"), "as it \"is\" \xC3\xA4");
  EXPECT_EQ(Clipped("a\nb\x1B"), "a\\x0ab\\x1b");
  EXPECT_EQ(Clipped("\xC2\x9B, \xC2\xA9, \xC3\x9B"), "\\xc2\\x9b, \xC2\xA9, \xC3\x9B");
  EXPECT_EQ(Clipped(std::string(100, 'x')), std::string(100, 'x'));
  EXPECT_EQ(Clipped(std::string(101, 'x')), std::string(100, 'x') + "... (101 bytes)");
  // Never half a character.
  EXPECT_EQ(Clipped(std::string(99, 'x') + "\xC3\xA4y"), std::string(99, 'x') + "... (102 bytes)");
}

TEST_F(EnvTest, UnknownNamesOfOurFamilyAreListed) {
  EXPECT_THAT(UnknownEnvironmentVariables(), ElementsAre());
  Set("LOCKSTEP_RANKK", "1");
  Set("LOCKSTEP_", "1");
  Set("LOCKSTEP_RANK", "1");
  Set("LOCKSTEP_TEST_SEEDS", "7-9");
  Set("NOT_LOCKSTEP_X", "1");
  EXPECT_THAT(UnknownEnvironmentVariables(), ElementsAre("LOCKSTEP_", "LOCKSTEP_RANKK"));
}

}  // namespace
}  // namespace lockstep
