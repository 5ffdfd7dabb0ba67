#include "tests/processes.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::AfterMs(20000); }

ProcessGroup::Options OfSize(int size) {
  ProcessGroup::Options options;
  options.size = size;
  return options;
}

LOCKSTEP_RANK_FUNCTION(Echo) {
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string message, self.Receive(Soon()));
    if (message == "end") return absl::OkStatus();
    LOCKSTEP_RETURN_IF_ERROR(self.Send(message));
  }
}

TEST(ProcessGroup, MessagesKeepTheirBoundariesAndOrder) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("Echo", OfSize(1)));
  const std::string longest(kProcessMessageBytesMax, 'x');
  for (const std::string& message : {std::string("one"), std::string("a\0b\n", 4), longest}) {
    ASSERT_THAT(group->Send(0, message), IsOk());
  }
  EXPECT_THAT(group->Receive(0, Soon()), IsOkAndHolds("one"));
  EXPECT_THAT(group->Receive(0, Soon()), IsOkAndHolds(std::string("a\0b\n", 4)));
  EXPECT_THAT(group->Receive(0, Soon()), IsOkAndHolds(longest));
  ASSERT_THAT(group->Send(0, "end"), IsOk());
  EXPECT_THAT(group->Wait(0, Soon()), IsOk());
  EXPECT_THAT(group->Receive(0, Soon()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("process 0 ended")));
}

LOCKSTEP_RANK_FUNCTION(SendMany) {
  for (int i = 0; i < 5000; ++i) LOCKSTEP_RETURN_IF_ERROR(self.Send(absl::StrCat(i)));
  return absl::OkStatus();
}

TEST(ProcessGroup, MessagesSentBeforeTheEndCanBeReceivedAfterIt) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("SendMany", OfSize(1)));
  ASSERT_THAT(group->Wait(0, Soon()), IsOk());
  for (int i = 0; i < 5000; ++i) ASSERT_THAT(group->Receive(0, Soon()), IsOkAndHolds(absl::StrCat(i)));
  EXPECT_THAT(group->Receive(0, Soon()), StatusIs(absl::StatusCode::kUnavailable));
}

LOCKSTEP_RANK_FUNCTION(Fail) {
  std::printf("to stdout\n");
  std::fprintf(stderr, "to stderr\n");
  return absl::AbortedError(absl::StrCat("rank ", self.rank(), " says no"));
}

TEST(ProcessGroup, WaitAnswersWhatTheFunctionReturned) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("Fail", OfSize(2)));
  for (int repeated = 0; repeated < 2; ++repeated) {
    EXPECT_THAT(group->Wait(1, Soon()), StatusIs(absl::StatusCode::kAborted, "rank 1 says no"));
  }
  EXPECT_THAT(group->Wait(0, Soon()), StatusIs(absl::StatusCode::kAborted, "rank 0 says no"));
  EXPECT_THAT(group->Output(1), AllOf(HasSubstr("to stdout"), HasSubstr("to stderr")));
}

LOCKSTEP_RANK_FUNCTION(Expect) {
  EXPECT_EQ(1, 2);
  return absl::OkStatus();
}

TEST(ProcessGroup, FailedExpectationInARankIsAnError) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("Expect", OfSize(1)));
  EXPECT_THAT(group->Wait(0, Soon()), StatusIs(absl::StatusCode::kInternal, HasSubstr("expectation")));
  EXPECT_THAT(group->Output(0), HasSubstr("processes_test.cc"));
}

LOCKSTEP_RANK_FUNCTION(ExitEarly) { _exit(3); }

LOCKSTEP_RANK_FUNCTION(ExitBadly) {
  atexit([] { _exit(4); });
  return absl::OkStatus();
}

TEST(ProcessGroup, ProcessThatEndsInAnotherWayIsUnknownAndSaysHow) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto early, ProcessGroup::Start("ExitEarly", OfSize(1)));
  EXPECT_THAT(early->Wait(0, Soon()), StatusIs(absl::StatusCode::kUnknown, "process 0 exited with status 3"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto badly, ProcessGroup::Start("ExitBadly", OfSize(1)));
  EXPECT_THAT(badly->Wait(0, Soon()),
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("after its function had returned")));
}

TEST(ProcessGroup, StoppedRankAnswersOnceItIsContinued) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("Echo", OfSize(1)));
  ASSERT_THAT(group->Signal(0, SIGSTOP), IsOk());
  int status = 0;
  ASSERT_EQ(waitpid(group->pid(0), &status, WUNTRACED), group->pid(0));
  ASSERT_TRUE(WIFSTOPPED(status));
  ASSERT_THAT(group->Send(0, "hello"), IsOk());
  EXPECT_THAT(group->Receive(0, Deadline::AfterMs(20)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(group->Wait(0, Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  ASSERT_THAT(group->Signal(0, SIGCONT), IsOk());
  EXPECT_THAT(group->Receive(0, Soon()), IsOkAndHolds("hello"));
}

// A child that neither ends by itself nor listens to SIGTERM; its number goes to the test.
LOCKSTEP_RANK_FUNCTION(LeaveAChild) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_IGN);
    for (;;) pause();
  }
  return self.Send(absl::StrCat(child));
}

TEST(ProcessGroup, NothingIsLeftWhateverTheRanksDid) {
  pid_t left_behind = 0;
  {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto echo, ProcessGroup::Start("Echo", OfSize(2)));
    ASSERT_THAT(echo->Signal(1, SIGSTOP), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto parent, ProcessGroup::Start("LeaveAChild", OfSize(1)));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string text, parent->Receive(0, Soon()));
    ASSERT_TRUE(absl::SimpleAtoi(text, &left_behind));
    ASSERT_THAT(parent->Wait(0, Soon()), IsOk());
    EXPECT_EQ(kill(left_behind, 0), 0) << "it outlives its parent";
  }
  EXPECT_EQ(kill(left_behind, 0), -1);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(ProcessGroup, RefusesWhatCannotBeStarted) {
  EXPECT_THAT(ProcessGroup::Start("NoSuchFunction", OfSize(1)).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("NoSuchFunction")));
  EXPECT_THAT(ProcessGroup::Start("Echo", OfSize(0)).status(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace lockstep
