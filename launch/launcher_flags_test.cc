#include "launch/launcher.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

TEST(LauncherFlags, LeavesEverythingFromTheProgramOnToTheProgram) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const LauncherFlags flags, ParseLauncherFlags(Words{"-n", "4", "--grace=0.25", "train",
                                                                                    "-n", "7", "--help", "--", "x"}));
  EXPECT_EQ(flags.options.world_size, 4);
  EXPECT_EQ(flags.options.grace_ms, 250);
  EXPECT_FALSE(flags.help);
  EXPECT_THAT(flags.options.command, ElementsAre("train", "-n", "7", "--help", "--", "x"));
}

TEST(LauncherFlags, TakesValuesAsTheNextWordOrBehindAnEqualsSign) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const LauncherFlags flags,
                                ParseLauncherFlags(Words{"--nproc=3", "--foreground", "2", "--threads=6", "--job-id",
                                                         "a=b", "--store=tcp://host:1/?x=y", "--", "-odd-name"}));
  EXPECT_EQ(flags.options.world_size, 3);
  EXPECT_EQ(flags.options.foreground_rank, 2);
  EXPECT_EQ(flags.options.threads, 6);
  EXPECT_EQ(flags.options.job_id, "a=b");
  EXPECT_EQ(flags.options.store_url, "tcp://host:1/?x=y");
  EXPECT_THAT(flags.options.command, ElementsAre("-odd-name"));
}

TEST(LauncherFlags, HelpNeedsNothingElse) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const LauncherFlags flags, ParseLauncherFlags(Words{"--help"}));
  EXPECT_TRUE(flags.help);
}

TEST(LauncherFlags, RefusesBadNumbersAndSaysWhatTheOptionTakes) {
  for (const char* bad : {"0", "-1", "4097", "two", "", "1.5", "99999999999999999999"}) {
    EXPECT_THAT(ParseLauncherFlags(Words{"-n", bad, "x"}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(std::string("-n is '") + bad), HasSubstr("1 to 4096"))));
  }
  for (const char* bad : {"0", "-1", "all", ""}) {
    EXPECT_THAT(ParseLauncherFlags(Words{"-n", "1", "--threads", bad, "x"}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--threads is")));
  }
  for (const char* bad : {"-1", "nan", "inf", "x", ""}) {
    EXPECT_THAT(ParseLauncherFlags(Words{"-n", "1", "--grace", bad, "x"}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--grace is")));
  }
  EXPECT_THAT(ParseLauncherFlags(Words{"-n", "2", "--foreground", "-1", "x"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--foreground is '-1'")));
}

TEST(LauncherFlags, RefusesUnknownAndIncompleteOptions) {
  const std::pair<Words, const char*> cases[] = {{{"-np", "2", "x"}, "no option -np"},
                                                 {{"--verbose"}, "no option --verbose"},
                                                 {{"-n"}, "-n needs a value"},
                                                 {{"-n", "2"}, "which program"},
                                                 {{"x"}, "how many ranks"},
                                                 {{}, "how many ranks"}};
  for (const auto& [words, text] : cases) {
    EXPECT_THAT(ParseLauncherFlags(words), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  }
}

}  // namespace
}  // namespace lockstep
