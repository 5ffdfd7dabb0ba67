// The contest with players that misbehave: whatever one does, it is dropped in bounded time with a reason, its
// processes are gone, and the others are measured in every round.

#include "bench/compare_contest.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "bench/compare_contender.h"
#include "bench/compare_result.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Contender Fake(const std::string& how, bool process_per_rank = true) {
  Contender contender;
  contender.name = how;
  contender.command = {"bench/compare_fake_player"};
  contender.options = {how};
  contender.process_per_rank = process_per_rank;
  return contender;
}

class ContestTest : public ::testing::Test {
 protected:
  ContestTest() {
    folder_ = ::testing::TempDir() + "/contest-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    options_.transport = "tcp";
    options_.ranks = 2;
    options_.sizes = {8, 4096};
    options_.rounds = 3;
    options_.round_time = std::chrono::milliseconds(1);
    options_.patience = std::chrono::milliseconds(4000);
    options_.folder = folder_;
  }

  // Of a contest between this contender and two that behave, who must not be affected.
  ContenderResult Outcome(const Contender& contender) {
    const ContestResult result = RunContest(options_, {Fake("good"), contender, Fake("good")});
    EXPECT_THAT(result.contenders, SizeIs(3));
    for (const size_t good : {0, 2}) {
      EXPECT_EQ(result.contenders[good].dropped, "");
      for (const Trial& trial : result.contenders[good].trials) EXPECT_THAT(trial.seconds, SizeIs(options_.rounds));
    }
    // Nothing is left, not even a zombie.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    return result.contenders[1];
  }

  ContestOptions options_;
  std::string folder_;
};

TEST_F(ContestTest, MeasuresEveryContenderInEveryRound) {
  const ContenderResult good = Outcome(Fake("good"));
  EXPECT_EQ(good.dropped, "");
  ASSERT_THAT(good.trials, SizeIs(2));
  for (const Trial& trial : good.trials) {
    EXPECT_GE(trial.calls, 1);
    ASSERT_THAT(trial.seconds, SizeIs(3));
    for (const double seconds : trial.seconds) EXPECT_GT(seconds, 0);
  }
  EXPECT_EQ(good.congestion_control, "none");
}

TEST_F(ContestTest, SizesAboveAContendersLimitAreNotAskedOfIt) {
  Contender small = Fake("good");
  small.bytes_max = 8;
  const ContenderResult result = Outcome(small);
  EXPECT_EQ(result.dropped, "");
  EXPECT_THAT(result.trials[0].seconds, SizeIs(3));
  EXPECT_THAT(result.trials[1].seconds, SizeIs(0));
}

TEST_F(ContestTest, AnInterruptionEndsItInOrder) {
  bool prepared = false;
  options_.on_progress = [&prepared](const std::string& text) { prepared = prepared || text == "4K bytes"; };
  options_.interrupted = [&prepared] { return prepared; };
  const ContestResult result = RunContest(options_, {Fake("good")});
  EXPECT_EQ(result.contenders[0].dropped, "");
  EXPECT_THAT(result.contenders[0].trials[0].seconds, SizeIs(3));
  EXPECT_THAT(result.contenders[0].trials[1].seconds, SizeIs(0));
}

TEST_F(ContestTest, WrongSumsDropIt) { EXPECT_EQ(Outcome(Fake("wrong")).dropped, "at 8: 1 elements are wrong"); }

TEST_F(ContestTest, AnErrorDropsItWithItsWords) {
  EXPECT_THAT(Outcome(Fake("fails")).dropped, HasSubstr("at 8: rank 1: out of ink"));
}

TEST_F(ContestTest, DeathDropsItWithHowAndItsLastWords) {
  // Rank 0 waits for rank 1 in the meantime.
  EXPECT_THAT(Outcome(Fake("dies")).dropped,
              HasSubstr("at 8: rank 1 was killed by signal 6 (SIGABRT); it wrote: last words"));
}

TEST_F(ContestTest, SilenceDropsItWhenPatienceEnds) {
  EXPECT_THAT(Outcome(Fake("hangs")).dropped, ContainsRegex("at 8: ranks? (0, )?1 did not answer 'run 8 3' in time"));
}

TEST_F(ContestTest, WhatIgnoresSigtermIsKilled) {
  EXPECT_THAT(Outcome(Fake("deaf")).dropped, HasSubstr("did not answer 'run 8 3' in time"));
}

TEST_F(ContestTest, WhatARankStartedIsEndedWithIt) { EXPECT_EQ(Outcome(Fake("forks")).dropped, ""); }

TEST_F(ContestTest, RanksThatALauncherPutIntoGroupsOfTheirOwnAreEndedToo) {
  EXPECT_THAT(Outcome(Fake("hangs", /*process_per_rank=*/false)).dropped, HasSubstr("did not answer"));
}

TEST_F(ContestTest, TheDeathOfALaunchersRankDropsItWithItsLastWords) {
  EXPECT_THAT(Outcome(Fake("dies", /*process_per_rank=*/false)).dropped,
              HasSubstr("at 8: rank 1 closed its connection; it wrote: last words"));
}

TEST_F(ContestTest, ARefusalAtTheStartIsTheReason) {
  EXPECT_EQ(Outcome(Fake("refuses")).dropped, "at its start: a rank: no paper");
}

TEST_F(ContestTest, WhoDoesNotStartInTimeIsDropped) {
  options_.start_patience = std::chrono::milliseconds(5000);  // rank 0 must have started
  EXPECT_EQ(Outcome(Fake("silent")).dropped, "at its start: rank 1 did not start in time");
}

TEST_F(ContestTest, AProgramThatIsNotThereIsTheReason) {
  Contender missing = Fake("good");
  missing.command = {"./no-such-player"};
  EXPECT_THAT(Outcome(missing).dropped, HasSubstr("no-such-player"));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
