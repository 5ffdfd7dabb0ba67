#include "transport/secure/refusals.h"

#include <chrono>
#include <thread>

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

TEST(RefusalsTest, CountsAllAndTellsOneOfAKindInASecond) {
  LogLines log;
  Refusals refusals("store server 10.0.0.1:4000");
  EXPECT_EQ(refusals.Describe(), "");
  for (int i = 0; i < 100; ++i) refusals.Note(Refusal::kNoSecret, "10.0.0.9:51230", "it does not have the secret");
  refusals.Note(Refusal::kSilent, "10.0.0.8:1", "it was silent");
  refusals.Note(Refusal::kCount, "10.0.0.8:2", "broke off later");
  EXPECT_EQ(refusals.count(Refusal::kBroken), 1u);
  EXPECT_EQ(refusals.count(Refusal::kNoSecret), 100u);
  EXPECT_EQ(refusals.total(), 102u);
  EXPECT_EQ(refusals.Describe(),
            "turned away 100 (does not have the secret), 1 (broke the handshake's protocol), 1 (was not through with "
            "the handshake in time)");
  // More of the first kind only if the loop took seconds.
  EXPECT_THAT(log.lines(), ::testing::SizeIs(::testing::AllOf(::testing::Ge(3u), ::testing::Lt(20u))));
  EXPECT_THAT(log.lines().front(),
              HasSubstr("store server 10.0.0.1:4000: turned away 10.0.0.9:51230: it does not have the secret"));
  EXPECT_THAT(log.lines(),
              ::testing::Contains(
                  HasSubstr("turned away 10.0.0.8:1: it was not through with the handshake in time: it was silent")));

  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  refusals.Note(Refusal::kNoSecret, "10.0.0.9:51231", "it does not have the secret");
  EXPECT_THAT(log.lines().back(),
              ::testing::AllOf(HasSubstr("turned away 10.0.0.9:51231: it does not have the secret (and "),
                               HasSubstr(" more since the last such line)")));
}

}  // namespace
}  // namespace lockstep
