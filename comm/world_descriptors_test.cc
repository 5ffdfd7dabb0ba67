// One rank that runs out of descriptors. Method: three ranks are processes of this host, and rank 1 makes world after world with one
// descriptor less each time.

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

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
#include "comm/communicator.h"
#include "comm/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr int kHindered = 1;
constexpr int kPlenty = 40;  // more than a world of three takes

Deadline Soon() { return Deadline::AfterMs(40'000); }

// Lets this process open so many more descriptors.
absl::Status AllowDescriptors(int more) {
  LOCKSTEP_RETURN_IF_ERROR(Limit(RLIMIT_NOFILE, RLIM_INFINITY));
  const int lowest_free = dup(0);
  if (lowest_free < 0) return ErrnoStatus(errno, "dup");
  close(lowest_free);
  return Limit(RLIMIT_NOFILE, lowest_free + more);
}

// Commands, each answered with how it went:
//   allow MORE    lets go of the world; from now on rank 1 may open so many more descriptors
//   exhaust       from now on rank 1 may open none
//   new           makes a world
//   run           all collectives
//   describe      answered with how the world is connected
//   end
LOCKSTEP_RANK_FUNCTION(ShortOfDescriptors) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  std::unique_ptr<World> world;
  for (int job = 0;; ++job) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string command, self.Receive(Soon()));
    if (command == "end") return absl::OkStatus();
    const std::vector<std::string> words = absl::StrSplit(command, ' ');
    int more = 0;
    absl::Status result;
    if (words.size() == 2 && absl::SimpleAtoi(words[1], &more)) {
      world.reset();
      if (self.rank() == kHindered) result = AllowDescriptors(more);
    } else if (words[0] == "exhaust") {
      if (self.rank() == kHindered) result = AllowDescriptors(0);
    } else if (words[0] == "new") {
      WorldOptions options = ProcessWorldOptions(self, store.get());
      options.job_id = absl::StrCat(job);
      absl::StatusOr<std::unique_ptr<World>> made = World::Create(options);
      result = made.status();
      if (made.ok()) world = *std::move(made);
    } else if (words[0] == "run") {
      result = RunAllCollectives(world->communicator());
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send(words[0] == "describe" ? world->communicator()->Describe() : result.ToString()));
  }
}

class WorldDescriptorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, ServeTestStore());
    ProcessGroup::Options options;
    options.size = kRanks;
    options.arguments = {store_->address().ToString()};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("ShortOfDescriptors", options));
  }
  std::vector<std::string> Ask(const std::string& command) {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(group_->Send(rank, command), IsOk());
    std::vector<std::string> answers;
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::StatusOr<std::string> answer = group_->Receive(rank, Soon());
      answers.push_back(answer.ok() ? *answer : absl::StrCat("no answer: ", answer.status().ToString()));
    }
    return answers;
  }
  void ExpectGoodEnd() {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(group_->Send(rank, "end"), IsOk());
    EXPECT_THAT(group_->WaitAll(Soon()), Each(IsOk()));
  }

  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<ProcessGroup> group_;
};

// With however few, nobody waits for what cannot come: the world works, over whatever it may be, or every rank is told why there
// is none.
TEST_F(WorldDescriptorsTest, OfAnyNumberMakeAWorldOrAReason) {
  int in_part = 0;
  for (int more = kPlenty;; --more) {
    SCOPED_TRACE(absl::StrCat(more, " more descriptors"));
    ASSERT_THAT(Ask(absl::StrCat("allow ", more)), Each("OK"));
    const std::vector<std::string> made = Ask("new");
    if (made[kHindered] != "OK") {
      EXPECT_THAT(made[kHindered], AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("Too many open files")));
      // Who comes to meet rank 0 when that has been told already, meets nobody.
      const auto left = AllOf(StartsWith("ABORTED: "), HasSubstr("rank 1 (host "), HasSubstr("left before"));
      for (const int rank : {0, 2}) EXPECT_THAT(made[rank], AnyOf(left, StartsWith("DEADLINE_EXCEEDED: ")));
      break;
    }
    ASSERT_THAT(made, Each("OK"));
    const std::vector<std::string> results = Ask("run");
    if (results[kHindered] == "OK") {
      EXPECT_THAT(results, Each("OK"));
    } else {  // the last of them went into what came before the mailboxes
      EXPECT_THAT(results, Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: rank 1: "),
                                      AnyOf(HasSubstr("RLIMIT_NOFILE allows "), HasSubstr("Too many open files")))));
    }
    const std::vector<std::string> descriptions = Ask("describe");
    const auto shares = [&](int rank, int with) {
      const std::string over_shm = absl::StrCat("\nrank ", with, " \\(host [^\n]*\\) over shm\n");
      return ::testing::Value(descriptions[rank], ContainsRegex(over_shm));
    };
    for (const int rank : {0, 2}) EXPECT_EQ(shares(rank, kHindered), shares(kHindered, rank)) << rank;
    const bool whole = shares(kHindered, 0) && shares(kHindered, 2);
    if (more == kPlenty) {
      EXPECT_TRUE(whole);
    }
    in_part += !whole;
  }
  EXPECT_GT(in_part, 0);
  ExpectGoodEnd();
}

// Mailboxes are made when they are first needed.
TEST_F(WorldDescriptorsTest, ThatRunOutLaterEndTheCommunicatorByNameAndNothingElse) {
  ASSERT_THAT(Ask("new"), Each("OK"));
  ASSERT_THAT(Ask("exhaust"), Each("OK"));
  EXPECT_THAT(Ask("run"), Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: rank 1: "), HasSubstr("RLIMIT_NOFILE allows "))));
  ASSERT_THAT(Ask(absl::StrCat("allow ", kPlenty)), Each("OK"));
  ASSERT_THAT(Ask("new"), Each("OK"));
  EXPECT_THAT(Ask("run"), Each("OK"));
  ExpectGoodEnd();
}

}  // namespace
}  // namespace lockstep
