#include "comm/record/failure_report.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/log_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class FailureReportTest : public ::testing::Test {
 protected:
  FailureReportTest() : error_file_(absl::StrCat(::testing::TempDir(), "/error.", getpid(), ".json")) {
    setenv("LOCKSTEP_REPORT_FOLDER", ::testing::TempDir().c_str(), 1);
    setenv("TORCHELASTIC_ERROR_FILE", error_file_.c_str(), 1);
    TakeBackFromLauncher();
  }
  ~FailureReportTest() override {
    TakeBackFromLauncher();
    unsetenv("LOCKSTEP_REPORT_FOLDER");
    unsetenv("TORCHELASTIC_ERROR_FILE");
  }

  const std::string error_file_;
};

// Four other ranks of the job have logged theirs.
TEST_F(FailureReportTest, LogsAnErrorUnlessFourRanksOfTheJobHave) {
  LogLines log;
  const absl::Status cause = absl::AbortedError("rank 2 died");
  std::vector<std::string> others;
  for (int i = 0; i < 4; ++i)
    std::ofstream(others.emplace_back(absl::StrCat(::testing::TempDir(), "/failure_logged.", i)));
  ReportFailure({Rank(1), 4}, "rank 1: failed in a job of many ranks", cause, "");
  EXPECT_TRUE(log.lines().empty());
  TakeBackFromLauncher();  // which leaves the others' files
  for (const std::string& path : others) EXPECT_EQ(unlink(path.c_str()), 0);
  ReportFailure({Rank(1), 4}, "rank 1: failed", absl::AbortedError("rank 3 died"), "");
  EXPECT_EQ(log.lines().size(), 1);
}

TEST_F(FailureReportTest, AReasonOfManyLinesIsInTheFile) {
  LogLines log;
  ReportFailure({Rank(1), 4}, "rank 1: failed", absl::AbortedError("rank 2 aborted it: keys differ:\n  a\n  b"), "");
  ASSERT_EQ(log.lines().size(), 1);
  const std::string line = log.lines()[0];
  EXPECT_THAT(line, AllOf(HasSubstr("rank 2 aborted it: keys differ: ... (flight records: /"), Not(HasSubstr("\n"))));
  const size_t begin = line.find(": /") + 2;
  EXPECT_THAT(Read(line.substr(begin, line.size() - 1 - begin)), HasSubstr("keys differ:\n  a\n  b"));
}

// 20 records and one failure; then the same cause in a second communicator, and a third that the program aborts.
TEST_F(FailureReportTest, OneLineNamesTheFileOfTheRecords) {
  std::string records;
  for (int i = 1; i <= 20; ++i) absl::StrAppend(&records, "barrier #", i, "\n");
  LogLines log;
  ReportFailure({Rank(1), 4}, "rank 1: communicator failed in barrier #20", absl::AbortedError("rank 2 died"), records);
  ReportFailure({Rank(1), 4}, "rank 1: communicator failed", absl::AbortedError("rank 2 died"), "send #1\n");
  ReportFailure({Rank(1), 4}, "rank 1: failed", WithFailedRank(absl::AbortedError("rank 1 aborted it"), 1),
                "send #2\n");
  ASSERT_EQ(log.lines().size(), 1);
  const std::string line = log.lines()[0];
  EXPECT_THAT(line, HasSubstr("rank 1: communicator failed in barrier #20: ABORTED: rank 2 died (flight records: /"));
  const size_t begin = line.find(": /") + 2;
  const std::string path = line.substr(begin, line.size() - 1 - begin);
  EXPECT_THAT(Read(path), AllOf(HasSubstr("barrier #1\n"), HasSubstr("barrier #20\n"), HasSubstr("send #1\n")));

  SetLogLevel(LogLevel::kInfo);
  ReportFailure({Rank(1), 4}, "rank 1: communicator failed", absl::AbortedError("rank 2 died"), records);
  SetLogLevel(LogLevel::kWarning);
  ASSERT_EQ(log.lines().size(), 3);
  EXPECT_THAT(log.lines()[1], HasSubstr(path));
  EXPECT_THAT(log.lines()[2],
              AllOf(HasSubstr("newest last:\nbarrier #5\n"), HasSubstr("barrier #20\n"), Not(HasSubstr("#4\n"))));
  unlink(path.c_str());
}

TEST_F(FailureReportTest, TheErrorFileHasTheCauseAndTheBlameUntilTheProgramGoesOn) {
  TellLauncher({Rank(0), 4}, WithFailedRank(absl::AbortedError("rank 2 died"), 2));
  TellLauncher({Rank(0), 4}, WithFailedRank(absl::AbortedError("rank 3 died"), 3));
  EXPECT_THAT(Read(error_file_),
              AllOf(HasSubstr(R"("message":"rank 2 died")"), HasSubstr(R"("failed_rank":2)"), HasSubstr(R"("rank":0,)"),
                    HasSubstr(R"("world_size":4})"), Not(HasSubstr("rank 3"))));
  TakeBackFromLauncher();
  EXPECT_EQ(access(error_file_.c_str(), F_OK), -1);
  const std::vector<int> launched_as = {6, 7};
  TellLauncher({Rank(0), 2, &launched_as}, WithFailedRank(absl::AbortedError("rank 1 died"), 1));
  EXPECT_THAT(Read(error_file_), AllOf(HasSubstr(R"("failed_rank":1,)"), HasSubstr(R"("launched_as":7,)")));
  TakeBackFromLauncher();
  TellLauncher({Rank(3), 4}, WithFailedRank(absl::AbortedError("rank 3 aborted it"), 3));
  EXPECT_THAT(Read(error_file_), Not(HasSubstr("failed_rank"))) << "it blames itself";
}

// A thread of the parent holds the lock at the moment of some of the forks.
TEST_F(FailureReportTest, AForkedChildIsNotHeldUpByAReportUnderWay) {
  std::atomic<bool> stop{false};
  std::thread reports([&] {
    while (!stop) {
      ReportFailure({Rank(1), 4}, "rank 1: failed", WithFailedRank(absl::AbortedError("rank 1 aborted it"), 1),
                    "send #1");
    }
  });
  for (int i = 0; i < 300; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      TakeBackFromLauncher();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "child " << i;
  }
  stop = true;
  reports.join();
}

TEST_F(FailureReportTest, ALimitOfFilesEndsNoProcess) {
  EXPECT_EXIT(
      {
        rlimit few;
        few.rlim_cur = few.rlim_max = 4096;
        setrlimit(RLIMIT_FSIZE, &few);
        ReportFailure({Rank(1), 4}, "rank 1: failed", absl::AbortedError("why"), std::string(64 << 10, 'x'));
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "failed: ABORTED: why \\(flight records: not written to .*: File too large");
}

TEST_F(FailureReportTest, LeavesWhatAnotherHasWrittenThere) {
  std::ofstream(error_file_) << "recorded";
  TellLauncher({Rank(0), 4}, absl::AbortedError("rank 2 died"));
  TakeBackFromLauncher();
  EXPECT_EQ(Read(error_file_), "recorded");
  unlink(error_file_.c_str());
}

}  // namespace
}  // namespace lockstep
