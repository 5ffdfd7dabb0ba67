// Ranks as processes that die otherwise than collective_fault_test.cc has it: with a child that lives on, in a monitored barrier, by
// an exit. Method: every process all-reduces without a
// pause, so that whenever the signal comes, it comes in the middle; what the survivors are told must be one text that names the
// victim, soon, and the same processes must be able to go on without it.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/processes.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 4;
// Before it, a rank must be found by something else than its silence.
constexpr milliseconds kPeerTimeout(60'000);
constexpr milliseconds kOperationTimeout(120'000);

Deadline Soon() { return Deadline::AfterMs(40'000); }

// All ranks add up `count` ones.
absl::Status AllReduceOnes(Communicator& self, size_t count) {
  std::vector<float> data(count, 1.0f);
  CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, data.size(), data.data(), data.data());
  request.algorithm = Algorithm::kRing;
  LOCKSTEP_RETURN_IF_ERROR(self.Run(request));
  for (const float value : data) {
    if (value != self.size()) return absl::DataLossError(absl::StrCat("the sum is ", value, ", not ", self.size()));
  }
  return absl::OkStatus();
}

bool in_forked_child = false;

// Commands, each answered with "ok" or a status as text:
//   world RANK SIZE JOB   makes a world, and only then lets go of the one before
//   once                  one all-reduce
//   run                   all-reduces until one fails; says "running" on the way
//   barrier MS            a monitored barrier with that timeout; says "running" on the way
//   fork                  starts a child that lives on
//   fork_exit             starts a child that exits at once
//   exit                  leaves the process without destroying the world
//   end
LOCKSTEP_RANK_FUNCTION(WorldRank) {
  std::unique_ptr<World> world;
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string command, self.Receive(Soon()));
    const std::vector<std::string> words = absl::StrSplit(command, ' ');
    absl::Status result;
    if (words[0] == "world") {
      WorldOptions options;
      if (!absl::SimpleAtoi(words[1], &options.rank) || !absl::SimpleAtoi(words[2], &options.size)) {
        return absl::InvalidArgumentError(command);
      }
      options.job_id = words[3];
      options.local_rank = options.rank;
      options.local_size = options.size;
      options.store_url = self.arguments()[0];
      options.setup_timeout = milliseconds(20'000);
      options.timeout = kOperationTimeout;
      options.peer_timeout = kPeerTimeout;
      absl::StatusOr<std::unique_ptr<World>> created = World::Create(options);
      result = created.status();
      if (created.ok()) world = *std::move(created);
    } else if (words[0] == "once") {
      result = AllReduceOnes(*world->communicator(), 10'000);
    } else if (words[0] == "run") {
      const Deadline deadline = Soon();
      for (int round = 0; result.ok() && !deadline.passed(); ++round) {
        if (round == 3) LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
        result = AllReduceOnes(*world->communicator(), 1'000'000);
      }
    } else if (words[0] == "barrier") {
      int timeout_ms = 0;
      if (!absl::SimpleAtoi(words[1], &timeout_ms)) return absl::InvalidArgumentError(command);
      LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
      result = world->communicator()->MonitoredBarrier(milliseconds(timeout_ms), nullptr);
    } else if (words[0] == "fork_exit") {
      const pid_t child = fork();
      if (child == 0) {
        in_forked_child = true;
        std::exit(0);
      }
      int status = 0;
      if (waitpid(child, &status, 0) != child || status != 0) result = absl::InternalError("the child");
    } else if (words[0] == "exit") {
      std::exit(0);
    } else if (words[0] == "fork") {
      if (fork() == 0) {
        for (;;) pause();  // until the test cleans up
      }
    } else {
      return absl::OkStatus();
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ok() ? "ok" : result.ToString()));
  }
}

class WorldFaultTest : public ::testing::TestWithParam<int> {
 protected:
  WorldFaultTest() : path_(absl::StrCat(::testing::TempDir(), "/world_fault_", getpid())) {}
  ~WorldFaultTest() override { unlink(path_.c_str()); }

  void StartWorld() {
    ProcessGroup::Options options;
    options.size = kRanks;
    options.arguments = {absl::StrCat("file://", path_)};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("WorldRank", options));
    for (int rank = 0; rank < kRanks; ++rank) Tell(rank, absl::StrCat("world ", rank, " ", kRanks, " first"));
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Answer(rank), "ok");
  }
  void Tell(int rank, const std::string& command) { ASSERT_THAT(group_->Send(rank, command), IsOk()); }
  std::string Answer(int rank) {
    const absl::StatusOr<std::string> answer = group_->Receive(rank, Soon());
    return answer.ok() ? *answer : absl::StrCat("no answer: ", answer.status().ToString());
  }
  std::vector<int> Survivors() const {
    std::vector<int> survivors;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != victim()) survivors.push_back(rank);
    }
    return survivors;
  }
  int victim() const { return GetParam(); }

  // Checks what the survivors are told: neither the peer timeout, which has another text, nor the test's own deadline has ended their wait.
  void ExpectNamed(const std::string& what, const std::string& operation) {
    std::vector<std::string> errors;
    for (const int rank : Survivors()) errors.push_back(Answer(rank));
    EXPECT_THAT(errors, Each(AllOf(StartsWith(absl::StrCat("ABORTED: ", operation)),
                                   HasSubstr(absl::StrCat("rank ", victim(), " (host ")),
                                   HasSubstr(absl::StrCat("pid ", group_->pid(victim()), ") ", what)),
                                   HasSubstr(absl::StrCat("failed_rank=", victim(), " collective=")))));
  }

  void ExpectSurvivorsGoOn() {
    const std::vector<int> survivors = Survivors();
    for (size_t i = 0; i < survivors.size(); ++i) {
      Tell(survivors[i], absl::StrCat("world ", i, " ", survivors.size(), " second"));
    }
    for (const int rank : survivors) EXPECT_EQ(Answer(rank), "ok");
    for (const int rank : survivors) Tell(rank, "once");
    for (const int rank : survivors) EXPECT_EQ(Answer(rank), "ok");
    for (const int rank : survivors) Tell(rank, "end");
    for (const int rank : survivors) EXPECT_THAT(group_->Wait(rank, Soon()), IsOk());
  }

  const std::string path_;
  std::unique_ptr<ProcessGroup> group_;
};

// Its child has inherited the sockets; were they open there, the connection would look alive until heartbeats are missed,
// which here takes a minute.
TEST_P(WorldFaultTest, ARankThatDiesWhileItsChildLivesIsNoticedAtOnce) {
  StartWorld();
  Tell(victim(), "fork");
  EXPECT_EQ(Answer(victim()), "ok");
  for (int rank = 0; rank < kRanks; ++rank) Tell(rank, "run");
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Answer(rank), "running");
  ASSERT_THAT(group_->Signal(victim(), SIGKILL), IsOk());
  ExpectNamed("died", "all_reduce");
  ExpectSurvivorsGoOn();
}

// First it does not come in time, and nothing but the barrier is over; then it dies while the others wait.
TEST_P(WorldFaultTest, AMonitoredBarrierEndsWithARankThatDies) {
  StartWorld();
  for (const int rank : Survivors()) Tell(rank, "barrier 3000");
  for (const int rank : Survivors()) EXPECT_EQ(Answer(rank), "running");
  const std::string late = absl::StrCat("monitored barrier #1: rank ", victim(), " has not come in time");
  for (const int rank : Survivors()) EXPECT_THAT(Answer(rank), StartsWith(absl::StrCat("DEADLINE_EXCEEDED: ", late)));
  for (const int rank : Survivors()) Tell(rank, "barrier 60000");
  for (const int rank : Survivors()) EXPECT_EQ(Answer(rank), "running");
  ASSERT_THAT(group_->Signal(victim(), SIGKILL), IsOk());
  ExpectNamed("died", "monitored barrier");  // numbered where the call came before the end
  ExpectSurvivorsGoOn();
}

// Neither a death nor a disconnect. A child that exits before says nothing, though it has the parent's exit handlers.
TEST_P(WorldFaultTest, ARankThatExitsWithoutDestroyingItsWorldIsToldFromOneThatDied) {
  StartWorld();
  Tell(victim(), "fork_exit");
  EXPECT_EQ(Answer(victim()), "ok");
  for (int rank = 0; rank < kRanks; ++rank) Tell(rank, "once");
  for (int rank = 0; rank < kRanks; ++rank) ASSERT_EQ(Answer(rank), "ok");
  for (const int rank : Survivors()) Tell(rank, "once");
  Tell(victim(), "exit");
  ExpectNamed("exited: its process ended without destroying its communicator", "all_reduce");
  EXPECT_THAT(group_->Wait(victim(), Soon()), StatusIs(absl::StatusCode::kUnknown, HasSubstr("exited with status 0")));
  ExpectSurvivorsGoOn();
}

INSTANTIATE_TEST_SUITE_P(Victim, WorldFaultTest, ::testing::Values(0, 2),
                         [](const ::testing::TestParamInfo<int>& info) { return absl::StrCat("Rank", info.param); });

}  // namespace
}  // namespace lockstep

// LeakSanitizer asks this at exit. In a forked child nothing leads to what the parent's other threads held, which it takes for leaks.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return lockstep::in_forked_child ? 1 : 0;
}
