#include "base/log.h"

#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Pair;

class LogTest : public testing::Test {
 protected:
  using Lines = std::vector<std::pair<LogLevel, std::string>>;

  LogTest() {
    SetLogLevel(LogLevel::kInfo);
    SetLogSink([](void* context, LogLevel level,
                  const char* line) { static_cast<Lines*>(context)->emplace_back(level, line); },
               &lines_);
  }
  ~LogTest() override { SetLogSink(nullptr, nullptr); }

  Lines lines_;
};

TEST_F(LogTest, SinkGetsLevelTimePlaceAndText) {
  LOCKSTEP_LOG(kInfo) << "rank " << 3;
  EXPECT_THAT(lines_,
              ElementsAre(Pair(LogLevel::kInfo,
                               MatchesRegex("lockstep [0-9:]+\\.[0-9]+Z info log_test\\.cc:[0-9]+\\] rank 3"))));
}

TEST_F(LogTest, LevelsBelowTheSetOneAreNotEvaluated) {
  int evaluated = 0;
  LOCKSTEP_LOG(kDebug) << ++evaluated;
  LOCKSTEP_LOG(kTrace) << ++evaluated;
  EXPECT_EQ(evaluated, 0);
  EXPECT_THAT(lines_, IsEmpty());
  SetLogLevel(LogLevel::kTrace);
  EXPECT_EQ(GetLogLevel(), LogLevel::kTrace);
  LOCKSTEP_LOG(kDebug) << ++evaluated;
  LOCKSTEP_LOG(kTrace) << ++evaluated;
  EXPECT_EQ(lines_.size(), 2);
}

TEST_F(LogTest, ErrorsAreLoggedAtEveryLevel) {
  SetLogLevel(LogLevel::kError);
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
}

TEST_F(LogTest, IsOneStatement) {
  bool reached_else = false;
  if (false)
    LOCKSTEP_LOG(kError) << "x";
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(LogTest, WithoutASinkOneWholeLineGoesToStderr) {
  SetLogSink(nullptr, nullptr);
  testing::internal::CaptureStderr();
  LOCKSTEP_LOG(kWarning) << "to stderr";
  EXPECT_THAT(testing::internal::GetCapturedStderr(), AllOf(HasSubstr(" warning "), EndsWith("] to stderr\n")));
  EXPECT_THAT(lines_, IsEmpty());
}

TEST(LogLevelTest, Names) {
  const char* const names[] = {"error", "warning", "info", "debug", "trace"};
  for (int level = 0; level < 5; ++level) EXPECT_STREQ(LogLevelName(static_cast<LogLevel>(level)), names[level]);
  EXPECT_STREQ(LogLevelName(static_cast<LogLevel>(9)), "unknown");
}

// The environment counts at the first use in a process, so each case needs a process of its own: a death test, which
// reports on stderr what it found.
void ReportLevelWith(const char* value) {
  setenv("LOCKSTEP_LOG", value, 1);
  const bool info = LogEnabled(LogLevel::kInfo);
  fprintf(stderr, "level=%s info=%d\n", LogLevelName(GetLogLevel()), info);
  _Exit(0);
}

TEST(LogDeathTest, EnvironmentSetsTheLevelAtFirstUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(ReportLevelWith("debug"), testing::ExitedWithCode(0), "level=debug info=1");
  EXPECT_EXIT(ReportLevelWith(""), testing::ExitedWithCode(0), "level=warning info=0");
}

TEST(LogDeathTest, ABadLevelInTheEnvironmentIsSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      ReportLevelWith("loud"), testing::ExitedWithCode(0),
      "LOCKSTEP_LOG=\"loud\": takes error, warning, info, debug, trace; logging at warning\nlevel=warning info=0");
}

// ---- LOCKSTEP_CHECK

TEST(CheckTest, TrueConditionEvaluatesOnceAndStreamsNothing) {
  int evaluated = 0;
  int streamed = 0;
  LOCKSTEP_CHECK(++evaluated == 1) << ++streamed;
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(streamed, 0);
}

TEST(CheckTest, IsOneStatement) {
  bool reached_else = false;
  if (false)
    LOCKSTEP_CHECK(true);
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

TEST(CheckDeathTest, FalseConditionAbortsWithPlaceConditionAndText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int slot = 7;
  EXPECT_DEATH(LOCKSTEP_CHECK(slot < 5) << "slot " << slot << " of " << 5,
               "base/log_test\\.cc:[0-9]+: check failed: slot < 5 slot 7 of 5");
}

TEST(CheckDeathTest, AbortsWithoutText) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(LOCKSTEP_CHECK(1 == 2), testing::KilledBySignal(SIGABRT), "check failed: 1 == 2");
}

}  // namespace
}  // namespace lockstep
