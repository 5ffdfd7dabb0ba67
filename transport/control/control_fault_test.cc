// Ranks as processes that are killed and stopped. Method: each process follows the test's commands, and what a rank
// heard of a failure is compared word for word with what the others heard. At the level that LOCKSTEP_SECURITY says, with a secret that
// rank 0 draws.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/processes.h"
#include "transport/control/control.h"
#include "transport/control/control_testing.h"
#include "transport/secure/credentials.h"
#include "transport/store/store_file.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Only a stopped rank is found by its silence: a death is noticed long before this.
constexpr milliseconds kPatience(20'000);
// A rank that is merely held up on a busy machine is not silent for so long.
constexpr milliseconds kPeerTimeout(2500);
constexpr ChannelId kChannel = 7;

// Commands: create, join, await (the failure of kChannel), report (that rank 2's data connection broke), count (of the
// failures that the handler was told), leave. Each is answered with "ok" or the status as text.
LOCKSTEP_RANK_FUNCTION(ControlRank) {
  int timeout_ms = 0;
  if (!absl::SimpleAtoi(self.arguments()[1], &timeout_ms)) return absl::InvalidArgumentError("timeout");
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<FileStore> store, FileStore::Open(self.arguments()[0], Soon()));
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int> level, GetEnvWord("LOCKSTEP_SECURITY", kSecurityLevelNames));
  Credentials credentials = Secured();
  if (level.has_value()) credentials.level = static_cast<SecurityLevel>(*level);
  FailureLog log;
  std::unique_ptr<ControlChannel> channel;
  for (;;) {
    const absl::StatusOr<std::string> command = self.Receive(Soon());
    if (!command.ok()) return command.status();
    absl::Status result;
    if (*command == "create") {
      ControlOptions options = OptionsOf(self.rank(), self.size(), milliseconds(timeout_ms), &log);
      options.credentials = credentials;
      auto created = ControlChannel::Create(std::move(options), store.get(), Soon());
      result = created.status();
      if (created.ok()) channel = *std::move(created);
    } else if (*command == "join") {
      result = channel->Join(MemberOf(self.rank(), getpid()), {}, Soon()).status();
    } else if (*command == "await") {
      result = channel->AwaitFailure(kChannel, absl::CancelledError("fallback"), Deadline::AfterMs(10'000));
    } else if (*command == "look") {
      result = channel->AwaitFailure(kChannel, absl::CancelledError("fallback"), Deadline::Now());
    } else if (*command == "report") {
      channel->Report(kChannel, absl::UnavailableError("recv from rank 2: connection reset"), Rank(2));
    } else if (*command == "count") {
      result = absl::UnknownError(absl::StrCat(log.Await(1, Soon()).size()));
    } else {
      channel.reset();
      return absl::OkStatus();
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ok() ? "ok" : result.ToString()));
  }
}

class ControlFaultTest : public ::testing::Test {
 protected:
  ControlFaultTest()
      : path_(absl::StrCat(::testing::TempDir(), "/control_fault_", getpid(), "_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~ControlFaultTest() override { unlink(path_.c_str()); }

  void Start(int size, milliseconds peer_timeout = kPatience) {
    group_.reset();
    ProcessGroup::Options options;
    options.size = size;
    options.arguments = {path_, absl::StrCat(peer_timeout.count())};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("ControlRank", options));
  }
  void StartJoined(int size, milliseconds peer_timeout = kPatience) {
    Start(size, peer_timeout);
    ExpectAll("create", "ok");
    ExpectAll("join", "ok");
  }
  void Tell(int rank, const std::string& command) { ASSERT_THAT(group_->Send(rank, command), IsOk()); }
  std::string Answer(int rank) {
    const absl::StatusOr<std::string> answer = group_->Receive(rank, Soon());
    return answer.ok() ? *answer : absl::StrCat("no answer: ", answer.status().ToString());
  }
  std::string Ask(int rank, const std::string& command) {
    Tell(rank, command);
    return Answer(rank);
  }
  void ExpectAll(const std::string& command, const std::string& answer) {
    for (int rank = 0; rank < group_->size(); ++rank) Tell(rank, command);
    for (int rank = 0; rank < group_->size(); ++rank) EXPECT_EQ(Answer(rank), answer) << "rank " << rank;
  }
  void Signal(int rank, int signal) { ASSERT_THAT(group_->Signal(rank, signal), IsOk()); }
  std::string Name(int rank) const {
    return absl::StrCat("rank ", rank, " (host h", rank, ", pid ", group_->pid(rank), ")");
  }
  // As a status of it is written, with its data.
  std::string FailureOf(int rank, absl::string_view what) const {
    return absl::StrCat("ABORTED: ", Name(rank), " ", what, " [lockstep='failed_rank=", rank, "']");
  }
  std::string NameOfSilent(int rank) const {
    return FailureOf(rank, absl::StrCat("is unresponsive: no heartbeat for ", kPeerTimeout.count(), " ms"));
  }

  const std::string path_;
  std::unique_ptr<ProcessGroup> group_;
};

TEST_F(ControlFaultTest, AKilledRankIsNamedOnAllOthers) {
  for (const int victim : {0, 2}) {
    StartJoined(3);
    Signal(victim, SIGKILL);
    for (const int rank : {1, 2 - victim}) {
      EXPECT_EQ(Ask(rank, "await"), FailureOf(victim, "died: control connection closed"));
      EXPECT_EQ(Ask(rank, "count"), "UNKNOWN: 1");
    }
  }
}

TEST_F(ControlFaultTest, AReportAgainstAKilledRankSaysThatItDied) {
  StartJoined(3);
  Signal(2, SIGKILL);
  EXPECT_THAT(group_->Wait(2, Soon()), StatusIs(absl::StatusCode::kUnknown, HasSubstr("SIGKILL")));
  EXPECT_EQ(Ask(1, "report"), "ok");
  for (const int rank : {0, 1}) {
    EXPECT_EQ(Ask(rank, "await"), FailureOf(2, "died: control connection closed"));
  }
}

TEST_F(ControlFaultTest, AStoppedRankIsUnresponsiveAndLearnsItWhenItWakes) {
  StartJoined(3, kPeerTimeout);
  Signal(2, SIGSTOP);
  const std::string expected = NameOfSilent(2);
  for (const int rank : {0, 1}) EXPECT_EQ(Ask(rank, "await"), expected);
  Signal(2, SIGCONT);
  EXPECT_EQ(Ask(2, "await"), expected);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(Ask(rank, "count"), "UNKNOWN: 1");
}

TEST_F(ControlFaultTest, AStoppedRankZeroIsUnresponsiveAndBlamesNobodyWhenItWakes) {
  StartJoined(3, kPeerTimeout);
  Signal(0, SIGSTOP);
  const std::string expected = NameOfSilent(0);
  for (const int rank : {1, 2}) EXPECT_EQ(Ask(rank, "await"), expected);
  // One of them is gone by the time rank 0 wakes up.
  Tell(1, "leave");
  EXPECT_THAT(group_->Wait(1, Soon()), IsOk());
  Signal(0, SIGCONT);
  EXPECT_EQ(Ask(0, "await"), expected);
  for (const int rank : {0, 2}) EXPECT_EQ(Ask(rank, "count"), "UNKNOWN: 1");
}

// Everybody on one host stops for longer than the timeout, as when a virtual machine is moved.
TEST_F(ControlFaultTest, AHostThatStoodStillBlamesNobody) {
  constexpr milliseconds kLonger = kPeerTimeout + milliseconds(500);
  StartJoined(3, kPeerTimeout);
  for (int rank = 0; rank < 3; ++rank) Signal(rank, SIGSTOP);
  std::this_thread::sleep_for(kLonger);
  // Rank 0, which watches the others, last: whoever stands still while it looks on is rightly blamed.
  for (const int rank : {1, 2, 0}) Signal(rank, SIGCONT);
  // Long enough for anybody to be blamed.
  std::this_thread::sleep_for(kLonger);
  ExpectAll("look", "CANCELLED: fallback");
}

TEST_F(ControlFaultTest, ARankKilledBeforeItJoinsFailsTheOthersAtOnce) {
  for (const int victim : {0, 2}) {
    Start(3);
    ExpectAll("create", "ok");
    for (const int rank : {1, 2 - victim}) Tell(rank, "join");
    Signal(victim, SIGKILL);
    for (const int rank : {1, 2 - victim}) {
      EXPECT_THAT(Answer(rank), AllOf(StartsWith(absl::StrCat("ABORTED: rank ", victim, " (host ")),
                                      HasSubstr(absl::StrCat("pid ", group_->pid(victim))),
                                      HasSubstr("died: control connection closed before the world had formed")));
    }
  }
}

// Rank 1 had reached it, and rank 2 comes too late for that.
TEST_F(ControlFaultTest, RanksThatComeAfterRankZeroHasDiedAreToldWhatHappened) {
  Start(3);
  for (const int rank : {0, 1}) EXPECT_EQ(Ask(rank, "create"), "ok");
  Signal(0, SIGKILL);
  const auto died = AllOf(HasSubstr(absl::StrCat("pid ", group_->pid(0))),
                          HasSubstr("died: control connection closed before the world had formed"));
  EXPECT_THAT(Ask(1, "join"), AllOf(StartsWith("ABORTED: rank 0 (host "), died));
  EXPECT_THAT(Ask(2, "create"), AllOf(StartsWith("ABORTED: rank 1 (host "), died));
}

TEST_F(ControlFaultTest, ARankZeroThatDiedOrWasStoppedBeforeOthersCameIsNamedAfterThePeerTimeout) {
  for (const auto& [signal, says] :
       std::map<int, const char*>{{SIGKILL, "died: no process listens at 127.0.0.1:"},
                                  {SIGSTOP, "is unresponsive: no heartbeat for 2500 ms before the world had formed"}}) {
    Start(2, kPeerTimeout);
    EXPECT_EQ(Ask(0, "create"), "ok");
    Signal(0, signal);
    EXPECT_THAT(Ask(1, "create"), AllOf(StartsWith("ABORTED: rank 0 (host "), HasSubstr(says),
                                        HasSubstr(absl::StrCat("pid ", group_->pid(0)))));
  }
}

TEST_F(ControlFaultTest, ACrashedWorldDoesNotDefeatTheNextOneInItsStore) {
  Start(2);
  EXPECT_EQ(Ask(0, "create"), "ok");  // has published its address
  Signal(0, SIGKILL);
  EXPECT_THAT(group_->Wait(0, Soon()), StatusIs(absl::StatusCode::kUnknown, HasSubstr("SIGKILL")));
  Start(2);
  // Rank 1 finds the left-over address first.
  Tell(1, "create");
  Tell(0, "create");
  EXPECT_EQ(Answer(0), "ok");
  EXPECT_EQ(Answer(1), "ok");
  ExpectAll("join", "ok");
}

}  // namespace
}  // namespace lockstep
