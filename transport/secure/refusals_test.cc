#include "transport/secure/refusals.h"

#include <chrono>
#include <string>
#include <vector>

#include "base/log_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(RefusalsTest, TellsTheWholeAtTheEnd) {
  const LogLevel before = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  LogLines log;
  {
    const Refusals none("nobody's");
    Refusals refusals("store server 10.0.0.1:4000");
    refusals.Note(Refusal::kGaveUp, "10.0.0.9:51230", "");
    refusals.Note(Refusal::kGaveUp, "10.0.0.9:51231", "");
  }
  SetLogLevel(before);
  EXPECT_THAT(
      log.lines(),
      ::testing::ElementsAre(
          HasSubstr("store server 10.0.0.1:4000: turned away 10.0.0.9:51230: it closed the connection before it was "
                    "through with the handshake"),
          HasSubstr("store server 10.0.0.1:4000 ends: turned away 2 (closed the connection before it was through with "
                    "the handshake)")));
}

TEST(RefusalsTest, CountsAllAndTellsOneOfAKind) {
  LogLines log;
  Refusals refusals("store server 10.0.0.1:4000");
  EXPECT_EQ(refusals.Describe(), "");
  const auto now = Refusals::Clock::now();
  for (int i = 0; i < 100; ++i) refusals.Note(Refusal::kNoSecret, "10.0.0.9:51230", "it does not have the secret", now);
  refusals.Note(Refusal::kSilent, "10.0.0.8:1", "it was silent", now);
  refusals.Note(Refusal::kCount, "10.0.0.8:2", "broke off later", now);
  EXPECT_EQ(refusals.count(Refusal::kBroken), 1u);
  EXPECT_EQ(refusals.count(Refusal::kNoSecret), 100u);
  EXPECT_EQ(refusals.total(), 102u);
  EXPECT_EQ(refusals.Describe(),
            "turned away 100 (does not have the secret), 1 (broke the handshake's protocol), 1 (was not through with "
            "the handshake in time)");
  EXPECT_THAT(log.lines(),
              ::testing::ElementsAre(
                  HasSubstr("store server 10.0.0.1:4000: turned away 10.0.0.9:51230: it does not have the secret"),
                  HasSubstr("turned away 10.0.0.8:1: it was not through with the handshake in time: it was silent"),
                  HasSubstr("turned away 10.0.0.8:2: it broke the handshake's protocol: broke off later")));
}

// Four a second for a day: lines after 0, 1, 3, 7, ... 4095 s, and then one an hour. After an hour without, it begins anew.
TEST(RefusalsTest, TellsLessAndLessOftenOfWhatGoesOn) {
  LogLines log;
  Refusals refusals("store server 10.0.0.1:4000");
  auto now = Refusals::Clock::now();
  for (int i = 0; i < 4 * 86400; ++i, now += std::chrono::milliseconds(250)) {
    refusals.Note(Refusal::kNoSecret, "10.0.0.9:51230", "it does not have the secret", now);
  }
  const std::vector<std::string> lines = log.lines();
  ASSERT_EQ(lines.size(), 13 + (86400 - 4095) / 3600);
  EXPECT_THAT(lines[1], HasSubstr("does not have the secret (and 3 more since the last such line)"));
  EXPECT_THAT(lines[2], HasSubstr("(and 7 more since the last such line)"));
  EXPECT_THAT(lines.back(), HasSubstr("(and 14399 more since the last such line)"));
  now += 2 * Refusals::kPauseMax;
  for (int i = 0; i < 5; ++i, now += std::chrono::milliseconds(250)) {
    refusals.Note(Refusal::kNoSecret, "10.0.0.9:51231", "it does not have the secret", now);
  }
  EXPECT_EQ(log.lines().size(), lines.size() + 2);
}

}  // namespace
}  // namespace lockstep
