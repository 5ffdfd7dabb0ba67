// One rank that runs out of descriptors. Method: three ranks are processes of this host, and one of them, rank 1 where nothing else
// is said, makes world after world with one descriptor less each time.

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/net/socket.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr int kHindered = 1;
constexpr int kPlenty = 40;  // more than a world of three takes
// A store's server that serves its own process: a listener, where it hands out its secret, epoll, its event, a spare one, both ends of a
// connection.
constexpr int kOfAServer = 7;

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
//   allow MORE    lets go of the world; from now on the hindered rank may open so many more descriptors
//   exhaust       from now on the hindered rank may open none
//   new           makes a world
//   new URL       makes a world whose store is there
//   run           all collectives
//   describe      answered with how the world is connected
//   end
LOCKSTEP_RANK_FUNCTION(ShortOfDescriptors) {
  // Arguments: the address of the store, the rank that is hindered.
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  const bool hindered = self.arguments()[1] == absl::StrCat(self.rank());
  std::unique_ptr<World> world;
  for (int job = 0;; ++job) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string command, self.Receive(Soon()));
    if (command == "end") return absl::OkStatus();
    const std::vector<std::string> words = absl::StrSplit(command, ' ');
    int more = 0;
    absl::Status result;
    if (words.size() == 2 && absl::SimpleAtoi(words[1], &more)) {
      world.reset();
      if (hindered) result = AllowDescriptors(more);
    } else if (words[0] == "exhaust") {
      if (hindered) result = AllowDescriptors(0);
    } else if (words[0] == "new") {
      WorldOptions options = ProcessWorldOptions(self, words.size() == 1 ? store.get() : nullptr);
      options.job_id = absl::StrCat(job);
      if (words.size() == 2) options.store_url = words[1];
      absl::StatusOr<std::unique_ptr<World>> made = World::Create(options);
      result = made.status();
      if (made.ok()) world = *std::move(made);
    } else if (words[0] == "run") {
      result = RunAllCollectives(world->communicator());
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send(words[0] == "describe" ? world->communicator()->Describe() : result.ToString()));
  }
}

// With the folder's own.
ptrdiff_t CountDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// Makes a world over what is best here, all-reduces a short and a long vector, and answers how many descriptors that takes. "end" ends it.
LOCKSTEP_RANK_FUNCTION(CountsDescriptorsOfAWorld) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  const ptrdiff_t before = CountDescriptors();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(ProcessWorldOptions(self, store.get())));
  for (const size_t count : {1, 1 << 20}) {
    std::vector<float> data(count, 1.0f);
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, count, data.data(), data.data());
    LOCKSTEP_RETURN_IF_ERROR(world->communicator()->Run(request));
    request.algorithm = Algorithm::kRing;  // by mailboxes
    LOCKSTEP_RETURN_IF_ERROR(world->communicator()->Run(request));
  }
  LOCKSTEP_RETURN_IF_ERROR(self.Send(absl::StrCat(CountDescriptors() - before)));
  return self.Receive(Soon()).status();
}

class WorldDescriptorsTest : public ::testing::Test {
 protected:
  void Start(int hindered) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, ServeTestStore());
    ProcessGroup::Options options;
    options.size = kRanks;
    options.arguments = {store_->address().ToString(), absl::StrCat(hindered)};
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

// Rank 0: a control connection of each peer, both ends of its own, the coordinator's listener and epoll, and the socket where connections
// of shared memory are parked. The others: a control connection, and two sockets for each peer.
TEST(WorldDescriptors, OfRankZeroAreAtMostTwelveWithEightRanksOnItsHost) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, ServeTestStore());
  ProcessGroup::Options options;
  options.size = 8;
  options.arguments = {store->address().ToString()};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("CountsDescriptorsOfAWorld", options));
  for (int rank = 0; rank < options.size; ++rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string answer, group->Receive(rank, Soon()));
    int count = 0;
    ASSERT_TRUE(absl::SimpleAtoi(answer, &count)) << answer;
    EXPECT_LE(count, rank == 0 ? 12 : 15) << "rank " << rank;
  }
  for (int rank = 0; rank < options.size; ++rank) EXPECT_THAT(group->Send(rank, "end"), IsOk());
  EXPECT_THAT(group->WaitAll(Soon()), Each(IsOk()));
}

// With however few, nobody waits for what cannot come: the world works, over whatever it may be, or every rank is told why there
// is none, at once.
TEST_F(WorldDescriptorsTest, OfAnyNumberMakeAWorldOrAReason) {
  Start(kHindered);
  int in_part = 0;
  for (int more = kPlenty;; --more) {
    SCOPED_TRACE(absl::StrCat(more, " more descriptors"));
    ASSERT_THAT(Ask(absl::StrCat("allow ", more)), Each("OK"));
    const std::vector<std::string> made = Ask("new");
    if (made[kHindered] != "OK") {
      EXPECT_THAT(made, Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("Too many open files"))));
      for (const int rank : {0, 2}) EXPECT_THAT(made[rank], HasSubstr("rank 1 (host "));
      if (more > 0) continue;
      break;
    }
    ASSERT_THAT(made, Each("OK"));
    const std::vector<std::string> results = Ask("run");
    if (results[kHindered] == "OK") {
      EXPECT_THAT(results, Each("OK"));
    } else {  // the last of them went into what came before the mailboxes
      EXPECT_THAT(results, Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("rank 1: "),
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

// The same of rank 0, which has the coordinator.
TEST_F(WorldDescriptorsTest, OfRankZeroMakeAWorldOrAReason) {
  Start(0);
  int failed = 0;
  for (int more = kPlenty; more >= 0; --more) {
    SCOPED_TRACE(absl::StrCat(more, " more descriptors"));
    ASSERT_THAT(Ask(absl::StrCat("allow ", more)), Each("OK"));
    const std::vector<std::string> made = Ask("new");
    if (made[0] == "OK") continue;
    EXPECT_THAT(made, Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("Too many open files"))));
    for (const int rank : {1, 2}) EXPECT_THAT(made[rank], HasSubstr("rank 0 (host "));
    ++failed;
  }
  EXPECT_GT(failed, 5);
  ExpectGoodEnd();
}

// And of a rank 0 that serves the store. Where that has none left for another connection, the others hear that, or that it has
// gone; where rank 0 ends before they come, nobody is there to tell them.
TEST_F(WorldDescriptorsTest, OfARankZeroThatServesTheStoreMakeAWorldOrAReason) {
  Start(0);
  bool in_time = false;
  for (int more = kPlenty; more >= 0; --more) {
    SCOPED_TRACE(absl::StrCat(more, " more descriptors"));
    const int port = LocalAddress(Listen(*SocketAddress::Parse("127.0.0.1:0"))->get())->port();
    ASSERT_THAT(Ask(absl::StrCat("allow ", more)), Each("OK"));
    const std::vector<std::string> made = Ask(absl::StrCat("new tcp://127.0.0.1:", port));
    if (made[0] == "OK") continue;
    EXPECT_THAT(made[0], AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("Too many open files")));
    const auto why = AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("Too many open files"));
    const auto gone = AllOf(StartsWith("UNAVAILABLE: "), HasSubstr("store tcp://"));
    const auto too_late = StartsWith("DEADLINE_EXCEEDED: store tcp://");
    if (::testing::Value(made, Contains(too_late))) {
      for (const int rank : {1, 2}) EXPECT_THAT(made[rank], AnyOf(why, gone, too_late));
      if (more < kOfAServer) break;
      // On a busy machine ranks may come after the time for which rank 0 keeps its store.
      continue;
    }
    in_time = true;
    for (const int rank : {1, 2}) {
      if (absl::StrContains(made[0], "is from option store_url")) {
        EXPECT_THAT(made[rank], AnyOf(why, gone));
      } else {
        EXPECT_THAT(made[rank], why);
      }
    }
  }
  EXPECT_TRUE(in_time);
  ExpectGoodEnd();
}

// Mailboxes are made when they are first needed.
TEST_F(WorldDescriptorsTest, ThatRunOutLaterEndTheCommunicatorByNameAndNothingElse) {
  Start(kHindered);
  ASSERT_THAT(Ask("new"), Each("OK"));
  ASSERT_THAT(Ask("exhaust"), Each("OK"));
  EXPECT_THAT(Ask("run"), Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("rank 1: "),
                                     HasSubstr("RLIMIT_NOFILE allows "), HasSubstr("failed_rank=1 "))));
  ASSERT_THAT(Ask(absl::StrCat("allow ", kPlenty)), Each("OK"));
  ASSERT_THAT(Ask("new"), Each("OK"));
  EXPECT_THAT(Ask("run"), Each("OK"));
  ExpectGoodEnd();
}

}  // namespace
}  // namespace lockstep
