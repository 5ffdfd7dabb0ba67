// Real TCP connections between ranks that are threads: how a world comes about, what it refuses, and what its control channel
// adds to failures: one text for all ranks.

#include "comm/world/world.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/env_testing.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gate.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Code = absl::StatusCode;

Deadline Soon() { return Deadline::AfterMs(30'000); }

// For a world that does not form: the first rank's time, in which those that do come have come, on a busy machine, too.
constexpr milliseconds kOthersAreIn(5000);

// Met at a store of their own.
std::vector<WorldOrError> Formed(int size, const std::function<void(int, WorldOptions*)>& change = nullptr) {
  MemoryStore store;
  std::vector<WorldOrError> worlds = CreateWorlds(&store, size, change);
  EXPECT_THAT(StatusesOf(worlds), Each(IsOk()));
  return worlds;
}

CollectiveRequest AllReduce(std::vector<float>* data) {
  CollectiveRequest request =
      MakeRequest(Collective::kAllReduce, DType::kF32, data->size(), data->data(), data->data());
  request.algorithm = Algorithm::kRing;
  return request;
}

void ExpectUsable(const std::vector<WorldOrError>& worlds) {
  ASSERT_THAT(StatusesOf(worlds), Each(IsOk()));
  RunRanks(static_cast<int>(worlds.size()), [&](int rank) {
    std::vector<float> data(1000, 1.0f);
    EXPECT_THAT((*worlds[rank])->communicator()->Run(AllReduce(&data)), IsOk());
    EXPECT_THAT(data, Each(static_cast<float>(worlds.size())));
  });
}

// The error of each rank: of this call, or of the next one where this one succeeded.
std::vector<absl::Status> ErrorsOf(const std::vector<WorldOrError>& worlds,
                                   const std::function<absl::Status(Communicator&)>& call) {
  std::vector<absl::Status> errors(worlds.size());
  RunRanks(static_cast<int>(worlds.size()), [&](int rank) {
    Communicator& self = *(*worlds[rank])->communicator();
    absl::Status status = call(self);
    if (status.ok()) status = self.Run(CollectiveRequest());
    // The call's own error says more, which differs.
    errors[rank] = self.status();
    EXPECT_EQ(status.code(), errors[rank].code());
    EXPECT_THAT(self.Run(CollectiveRequest()),
                StatusIs(errors[rank].code(), HasSubstr("barrier: the communicator has ended")));
  });
  return errors;
}

TEST(World, OfOneNeedsNothingSet) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<World> world, World::Create(WorldOptions()));
  Communicator& self = *world->communicator();
  EXPECT_EQ(self.size(), 1);
  EXPECT_EQ(self.rank(), Rank(0));
  std::vector<float> data = {1, 2};
  EXPECT_THAT(self.Run(AllReduce(&data)), IsOk());
  EXPECT_THAT(data, ElementsAre(1, 2));
  EXPECT_THAT(self.Describe(), HasSubstr("one rank"));
}

TEST(World, ComesFromTheEnvironment) {
  const std::string url = absl::StrCat("file://", ::testing::TempDir(), "/world_store_", getpid());
  const ScopedVariable size("LOCKSTEP_WORLD_SIZE", "1"), rank("LOCKSTEP_RANK", "0"),
      store("LOCKSTEP_STORE", url.c_str());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<World> world, World::Create(WorldOptions()));
  EXPECT_EQ(world->communicator()->size(), 1);
}

TEST(World, RefusesOptionsThatCannotBe) {
  MemoryStore store;
  const auto refusal = [&](const std::function<void(WorldOptions*)>& change) {
    WorldOptions options = TestWorldOptions(&store, 0, 2);
    change(&options);
    return World::Create(options).status();
  };
  const auto refused = [](auto message) { return StatusIs(Code::kInvalidArgument, message); };
  EXPECT_THAT(refusal([](auto* o) { o->algorithm = "rong"; }),
              refused(AllOf(HasSubstr("rong"), HasSubstr("ring"), HasSubstr("recursive_doubling"),
                            HasSubstr("dissemination"))));
  EXPECT_THAT(refusal([](auto* o) { o->algorithm = "barrier:ring"; }), refused(HasSubstr("barrier")));
  EXPECT_THAT(refusal([](auto* o) { o->algorithm = "ring", o->deterministic = true; }),
              refused(HasSubstr("ring of all_reduce does not fold in rank order")));
  for (const int64_t chunk_bytes : {int64_t{-64}, int64_t{1}, int64_t{65}, int64_t{1} << 40}) {
    EXPECT_THAT(refusal([&](auto* o) { o->chunk_bytes = chunk_bytes; }),
                refused(AllOf(HasSubstr("chunk_bytes"), HasSubstr(absl::StrCat(chunk_bytes)))));
  }
  EXPECT_THAT(refusal([](auto* o) { o->timeout = milliseconds(-1); }), refused(HasSubstr("timeout_ms is negative")));
  EXPECT_THAT(refusal([](auto* o) { o->peer_timeout = milliseconds(-1); }), refused(HasSubstr("peer_timeout")));
  EXPECT_THAT(refusal([](auto* o) { o->setup_timeout = milliseconds(-1); }), refused(HasSubstr("setup_timeout")));
  EXPECT_THAT(refusal([](auto* o) { o->rank = 2; }), refused(AllOf(HasSubstr("rank"), HasSubstr("2"))));
  EXPECT_THAT(refusal([](auto* o) { o->rank = -1; }), refused(HasSubstr("rank")));
  EXPECT_THAT(refusal([](auto* o) { o->size = -1; }), refused(HasSubstr("size")));
  EXPECT_THAT(refusal([](auto* o) {
                o->store = nullptr;
                o->store_url = "ftp://somewhere";
              }),
              refused(HasSubstr("ftp://somewhere")));
  EXPECT_THAT(refusal([](auto* o) { o->interface = "10.0.0.0/99"; }), refused(HasSubstr("10.0.0.0/99")));
  EXPECT_THAT(refusal([](auto* o) { o->interface = "=nosuch0"; }),
              StatusIs(Code::kNotFound, AllOf(HasSubstr("nosuch0"), HasSubstr("lo"))));
}

TEST(World, RefusesAnEnvironmentThatCannotBe) {
  MemoryStore store;
  const auto refusal = [&](const char* name, const char* value) {
    const ScopedVariable variable(name, value);
    WorldOptions options = TestWorldOptions(&store, 0, 2);
    options.timeout = options.peer_timeout = milliseconds(0);
    options.interface.clear();
    return World::Create(options).status();
  };
  const std::string long_value(100'000, '9');
  for (const char* name :
       {"LOCKSTEP_TRANSPORT", "LOCKSTEP_ALGORITHM", "LOCKSTEP_CHUNK_BYTES", "LOCKSTEP_CHECKED", "LOCKSTEP_TIMEOUT_MS",
        "LOCKSTEP_PEER_TIMEOUT_MS", "LOCKSTEP_FLIGHT_RECORDS", "LOCKSTEP_CPU", "LOCKSTEP_LOG"}) {
    EXPECT_THAT(refusal(name, "pigeon"), StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("pigeon"), HasSubstr(name))));
    EXPECT_THAT(refusal(name, long_value.c_str()),
                StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("(100000 bytes)"), SizeIs(Lt(1000)))));
  }
  // What is not on this machine.
  for (const char* name : {"LOCKSTEP_INTERFACE", "LOCKSTEP_TCP_CONGESTION"}) {
    EXPECT_THAT(refusal(name, "pigeon"), StatusIs(Code::kNotFound, AllOf(HasSubstr("pigeon"), StartsWith(name))));
    EXPECT_THAT(refusal(name, long_value.c_str()).message(), AllOf(HasSubstr("(100000 bytes)"), SizeIs(Lt(4000))))
        << name;
  }
  EXPECT_THAT(refusal("LOCKSTEP_INTERFACE", "10.0.0.0/99"),
              StatusIs(Code::kInvalidArgument, StartsWith("LOCKSTEP_INTERFACE: ")));
  EXPECT_THAT(refusal("LOCKSTEP_TRANSPORT", "pigeon"),
              StatusIs(Code::kInvalidArgument,
                       AllOf(HasSubstr("LOCKSTEP_TRANSPORT"), HasSubstr("known are auto, tcp, shm, ofi"))));
  EXPECT_THAT(refusal("LOCKSTEP_TIMEOUT_MS", "0"), StatusIs(Code::kInvalidArgument, HasSubstr("LOCKSTEP_TIMEOUT_MS")));
  const ScopedVariable size("LOCKSTEP_WORLD_SIZE", "2");
  EXPECT_THAT(World::Create(WorldOptions()).status(), StatusIs(Code::kInvalidArgument, HasSubstr("LOCKSTEP_RANK")));
}

// `over`: a regular expression for how ranks reach each other.
void ExpectConnected(const std::string& transport, const std::string& over) {
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 3, [&](int, WorldOptions* options) {
    options->transport = transport;
    options->job_id = "job-7";
    options->algorithm = "all_reduce:ring";
    options->chunk_bytes = 8192;
  });
  ExpectUsable(worlds);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = (*worlds[rank])->communicator()->Describe();
    EXPECT_THAT(text,
                StartsWith(absl::StrCat("rank ", rank, " of 3 (from options), job 'job-7', met at store memory")));
    EXPECT_THAT(text, AllOf(HasSubstr("all_reduce:ring"), HasSubstr("chunks of 8192 B")));
    for (int other = 0; other < 3; ++other) {
      const bool self = other == rank;
      EXPECT_THAT(text, ContainsRegex(absl::StrCat("\nrank ", other, " \\(host .*, pid ", getpid(), "\\) over ",
                                                   self ? "nothing: it is this rank" : over, "\n")));
    }
  }
}

TEST(World, TellsHowTheRanksAreConnected) {
  ExpectConnected("auto", "shm");
  ExpectConnected("shm", "shm");
  ExpectConnected("tcp", "tcp 127.0.0.1:[0-9]+");
}

// Ranks 0 and 1 on one host, 2 and 3 on another, as they say.
TEST(World, UsesSharedMemoryInsideAHostAndTcpBetweenHosts) {
  const ScopedVariable nothing_chosen("LOCKSTEP_TRANSPORT", nullptr);
  MemoryStore store;
  const auto on_two_hosts = [](int rank, WorldOptions* options) { options->host_id = rank < 2 ? "a" : "b"; };
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 4, on_two_hosts);
  ExpectUsable(worlds);
  EXPECT_THAT((*worlds[2])->communicator()->Describe(),
              AllOf(ContainsRegex("\nrank 3 .* over shm\n"),
                    ContainsRegex("\nrank 0 .* over tcp 127.0.0.1:[0-9]+ \\(not shm: it is on another host\\)\n")));
  const std::vector<WorldOrError> refused = CreateWorlds(&store, 4, [&](int rank, WorldOptions* options) {
    on_two_hosts(rank, options);
    options->transport = "shm";
  });
  EXPECT_THAT(refused[1].status(), StatusIs(Code::kUnavailable, AllOf(HasSubstr("no shared memory with rank 2 (host "),
                                                                      HasSubstr("it is on another host"))));
  EXPECT_THAT(refused[3].status(), StatusIs(Code::kUnavailable, HasSubstr("no shared memory with rank 0 (host ")));
}

// Several jobs at one store at once, and the same job there again.
TEST(World, SharesItsStoreWithOthersAndLeavesItClean) {
  MemoryStore store;
  for (int round = 0; round < 2; ++round) {
    std::vector<WorldOptions> options;
    for (int job = 0; job < 2; ++job) {
      for (int rank = 0; rank < 2; ++rank) {
        options.push_back(TestWorldOptions(&store, rank, 2));
        options.back().job_id = absl::StrCat("job", job);
      }
    }
    const std::vector<WorldOrError> worlds = CreateWorlds(options);
    ASSERT_THAT(StatusesOf(worlds), Each(IsOk()));
    RunRanks(4, [&](int i) {
      const int job = i / 2;
      std::vector<float> data(10, job + 1.0f);
      EXPECT_THAT((*worlds[i])->communicator()->Run(AllReduce(&data)), IsOk());
      EXPECT_THAT(data, Each(2 * (job + 1.0f)));
    });
  }
}

TEST(World, OptionsThatShapeWhatIsSentMustAgree) {
  struct Case {
    std::function<void(WorldOptions*)> change;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](auto* o) { o->chunk_bytes = 4096; }, "chunk_bytes: 65536 on ranks 0, 2, 4096 on rank 1"},
      {[](auto* o) { o->algorithm = "all_reduce:ring"; },
       "algorithm: chosen by size on ranks 0, 2, all_reduce:ring on rank 1"},
      {[](auto* o) { o->checked = true; }, "checked: no on ranks 0, 2, yes on rank 1"},
      {[](auto* o) { o->deterministic = o->checked = true; },
       "checked: no on ranks 0, 2, yes on rank 1; deterministic: no on ranks 0, 2, yes on rank 1"},
  };
  for (const Case& c : cases) {
    MemoryStore store;
    const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(&store, 3, [&](int rank, WorldOptions* options) {
      options->chunk_bytes = 65536;
      if (rank == 1) c.change(options);
    }));
    EXPECT_THAT(errors, Each(StatusIs(Code::kFailedPrecondition, HasSubstr(c.text))));
    EXPECT_THAT(errors, Each(Eq(errors[0])));
    ExpectUsable(CreateWorlds(&store, 3));  // the store is good for the next attempt
  }
}

TEST(World, OptionsOfEachRankAloneMayDiffer) {
  MemoryStore store;
  ExpectUsable(CreateWorlds(&store, 2, [](int rank, WorldOptions* options) {
    options->timeout = milliseconds(20'000 + rank);
    options->setup_timeout = milliseconds(20'000 + rank);
    if (rank == 1) options->local_size = options->local_rank = 0;
  }));
}

// The coordinator knows at once, and so does everybody: rank 0 would wait for a rank that cannot come.
TEST(World, WorldSizesMustAgree) {
  MemoryStore store;
  std::vector<WorldOptions> options = {TestWorldOptions(&store, 0, 3), TestWorldOptions(&store, 1, 2),
                                       TestWorldOptions(&store, 2, 3)};
  EXPECT_THAT(
      StatusesOf(CreateWorlds(options)),
      Each(StatusIs(Code::kFailedPrecondition,
                    ContainsRegex(absl::StrCat("the world has 3 ranks according to rank 0 \\(host .*, pid ", getpid(),
                                               "\\), 2 according to rank 1 \\(host .*, pid ", getpid(), "\\)")))));
  ExpectUsable(CreateWorlds(&store, 3));
}

// What one rank finds wrong before it has met the others.
TEST(World, ARankThatCannotGoOnTellsTheOthersAtOnce) {
  struct Case {
    std::function<void(WorldOptions*)> change;
    const char* text;
  };
  const Case cases[] = {
      {[](WorldOptions* options) { options->interface = "=no_such_interface"; },
       "no network interface fits '=no_such_interface'"},
      {[](WorldOptions* options) { options->chunk_bytes = 100; }, "chunk_bytes is 100"},
      {[](WorldOptions* options) { options->algorithm = "quantum"; }, "'quantum'"},  // as a variable may be
  };
  for (const Case& c : cases) {
    for (const int failing : {0, 1, 2}) {
      SCOPED_TRACE(absl::StrCat(c.text, ", of rank ", failing));
      MemoryStore store;
      const auto change = [&](int rank, WorldOptions* options) {
        options->job_id = "tells";
        if (rank == failing) c.change(options);
      };
      const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(&store, 3, change));
      EXPECT_THAT(errors[failing].message(), HasSubstr(c.text));
      // By the store or by the coordinator, which names itself first.
      const std::string who = absl::StrCat("rank ", failing, " (host ");
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == failing) continue;
        EXPECT_THAT(errors[rank],
                    StatusIs(errors[failing].code(), AllOf(HasSubstr(who), HasSubstr(errors[failing].message()))))
            << rank;
      }
      ExpectUsable(CreateWorlds(&store, 3, [](int, WorldOptions* options) { options->job_id = "tells"; }));
    }
  }
}

// Nobody takes the failure of another's first attempt for one of its own second, however late that one is.
TEST(World, RanksThatAllRefuseTheirOptionsMeetWhenTheyTryAgain) {
  for (const int last : {0, 1, 2}) {
    SCOPED_TRACE(absl::StrCat("last is rank ", last));
    MemoryStore store;
    std::atomic<int> refused{0};
    std::vector<WorldOrError> worlds(3);
    RunRanks(3, [&](int rank) {
      WorldOptions options = TestWorldOptions(&store, rank, 3);
      options.job_id = "tries";
      options.chunk_bytes = 100;
      const Deadline patience = Deadline::After(options.setup_timeout);
      while (rank == last && refused < 2 && !patience.passed()) std::this_thread::yield();
      EXPECT_THAT(World::Create(options), StatusIs(Code::kInvalidArgument, StartsWith("chunk_bytes is 100")));
      ++refused;
      options.chunk_bytes = 65536;
      worlds[rank] = World::Create(options);
    });
    ExpectUsable(worlds);
  }
}

// The store goes with rank 0, but not before the others have read why.
TEST(World, ARankZeroThatServesTheStoreTellsTheOthersWhyItGoes) {
  const int port = LocalAddress(Listen(*SocketAddress::Parse("127.0.0.1:0"))->get())->port();
  const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(nullptr, 3, [&](int rank, WorldOptions* options) {
    options->store_url = absl::StrCat("tcp://127.0.0.1:", port);
    if (rank == 0) options->interface = "=no_such_interface";
  }));
  for (const int rank : {1, 2}) {
    EXPECT_THAT(errors[rank], StatusIs(Code::kNotFound, HasSubstr(errors[0].message())));
  }
}

// As where a network comes up while the job starts.
TEST(World, OverSeveralHostsNoRankTellsTheOthersOfLoopback) {
  const ScopedVariable nothing_chosen("LOCKSTEP_TRANSPORT", nullptr);
  MemoryStore store;
  const absl::StatusOr<InterfaceChoice> other = ChooseInterface(*ListInterfaceAddresses(), "", WorldHosts::kSeveral);
  if (!other.ok()) GTEST_SKIP() << "this machine has loopback alone: " << other.status();
  const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(&store, 2, [&](int rank, WorldOptions* options) {
    options->local_size = 1;
    options->local_rank = 0;
    options->host_id = rank == 0 ? "a" : "b";
    if (rank == 1) options->interface = "=lo";
  }));
  EXPECT_THAT(errors, Each(StatusIs(Code::kFailedPrecondition,
                                    AllOf(HasSubstr("rank 1 (host "), HasSubstr("listens on loopback (127.0.0.1:")))));
}

TEST(World, ARankThatNeverComesIsNamed) {
  MemoryStore store;
  std::vector<WorldOptions> options;
  for (const int rank : {0, 2, 4}) {
    options.push_back(TestWorldOptions(&store, rank, 5));
    options.back().setup_timeout = kOthersAreIn;
  }
  EXPECT_THAT(StatusesOf(CreateWorlds(options)),
              Each(StatusIs(Code::kDeadlineExceeded, HasSubstr("ranks 1, 3 of 5 have not joined"))));
  for (WorldOptions& other : options) {
    ++other.rank;
    other.setup_timeout = milliseconds(500);
  }
  options.pop_back();
  EXPECT_THAT(StatusesOf(CreateWorlds(options)), Each(StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 0"))));
}

TEST(World, TwoProcessesMayNotClaimOneRank) {
  MemoryStore store;
  std::vector<WorldOptions> options;
  for (const int rank : {0, 1, 1}) {
    options.push_back(TestWorldOptions(&store, rank, 3));
    options.back().setup_timeout = kOthersAreIn;
  }
  const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(options));
  const auto taken =
      StatusIs(Code::kAlreadyExists, AllOf(HasSubstr("rank 1"), HasSubstr(absl::StrCat("pid ", getpid()))));
  const auto missing = StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 2"));
  EXPECT_THAT(errors[0], missing);
  EXPECT_THAT(std::vector<absl::Status>({errors[1], errors[2]}), ::testing::UnorderedElementsAre(taken, missing));
}

// Rank 1 calls something else. In a ring of four, rank 3 is no neighbour of it, and hears the same.
TEST(World, AMismatchIsTheSameTextOnEveryRank) {
  const std::vector<WorldOrError> worlds = Formed(4);
  const std::vector<absl::Status> errors = ErrorsOf(worlds, [](Communicator& self) {
    std::vector<float> data(100'000 - (self.rank() == Rank(1) ? 1 : 0));
    return self.Run(AllReduce(&data));
  });
  EXPECT_THAT(errors[0], StatusIs(Code::kFailedPrecondition,
                                  AllOf(HasSubstr("rank 1 called all_reduce #1 (99999 f32 sum, ring)"),
                                        // Where ranks are so slow that the coordinator asks first, any of them is told.
                                        ContainsRegex("rank [023] called all_reduce #1 \\(100000 f32 sum, ring\\)"))));
  EXPECT_THAT(errors, Each(Eq(errors[0])));
}

// Ranks whose part is to send are done before anybody knows: the next call tells them.
TEST(World, AMismatchOfRootsIsToldByTheNextCallAtTheLatest) {
  const std::vector<WorldOrError> worlds = Formed(4);
  const std::vector<absl::Status> errors = ErrorsOf(worlds, [](Communicator& self) {
    std::vector<float> data(10);
    CollectiveRequest request = AllReduce(&data);
    request.collective = Collective::kBroadcast;
    request.algorithm = Algorithm::kAuto;
    request.root = Rank(self.rank() == Rank(3) ? 3 : 0);
    return self.Run(request);
  });
  EXPECT_THAT(errors[0], StatusIs(Code::kFailedPrecondition, HasSubstr("called broadcast #1 (10 f32, root ")));
  EXPECT_THAT(errors, Each(Eq(errors[0])));
}

// Each believes the other to be the sender, so both only receive: the heartbeats tell, long before the deadline.
TEST(World, AMismatchInWhichNoMessageMeetsAnotherIsTheSameTextOnEveryRank) {
  const std::vector<WorldOrError> worlds =
      Formed(2, [](int, WorldOptions* options) { options->peer_timeout = milliseconds(5'000); });
  const std::vector<absl::Status> errors = ErrorsOf(worlds, [](Communicator& self) {
    std::vector<float> data(10);
    CollectiveRequest request = AllReduce(&data);
    request.collective = Collective::kReduce;
    request.root = self.rank();
    return self.Run(request);
  });
  const absl::Status expected = absl::FailedPreconditionError(
      "the ranks' collectives differ: rank 0 called reduce #1 (10 f32 sum, root 0, ring); "
      "rank 1 called reduce #1 (10 f32 sum, root 1, ring)");
  EXPECT_EQ(errors[0], WithFailedRank(expected, 1));
  EXPECT_THAT(errors, Each(Eq(errors[0])));
}

TEST(World, ALateRankIsNamedEverywhereWhenADeadlinePasses) {
  const std::vector<WorldOrError> worlds = Formed(4);
  Gate others_have_called, announced;
  std::atomic<int> called{0}, ended{0};
  const std::vector<absl::Status> errors = ErrorsOf(worlds, [&](Communicator& self) {
    std::vector<float> data(10);
    CollectiveRequest request = AllReduce(&data);
    if (self.rank() == Rank(2)) {
      EXPECT_THAT(announced.Await(Soon()), IsOk());
      return self.Run(request);
    }
    if (self.rank() == Rank(0)) {
      EXPECT_THAT(others_have_called.Await(Soon()), IsOk());
      request.timeout = milliseconds(200);
    }
    absl::StatusOr<Work> work = self.Start(request);
    if (self.rank() != Rank(0) && ++called == 2) others_have_called.Open();
    const absl::Status status = work.ok() ? work->Wait(Soon()) : work.status();
    if (++ended == 3) announced.Open();
    return status;
  });
  EXPECT_THAT(errors[0], StatusIs(Code::kDeadlineExceeded,
                                  AllOf(HasSubstr("all_reduce #1 (10 f32 sum, ring) did not finish in time"),
                                        HasSubstr("rank 2 (host "), HasSubstr("has not called it"))));
  EXPECT_THAT(errors, Each(Eq(errors[0])));
}

TEST(World, AnAbortIsTheSameTextOnEveryRank) {
  const std::vector<WorldOrError> worlds = Formed(4);
  const std::vector<absl::Status> errors = ErrorsOf(worlds, [](Communicator& self) {
    if (self.rank() == Rank(2)) self.Abort("loss is NaN");
    std::vector<float> data(100'000);
    return self.Run(AllReduce(&data));
  });
  EXPECT_THAT(errors, Each(StatusIs(Code::kAborted, "rank 2 aborted the communicator: loss is NaN")));
}

TEST(World, NotesReachEveryRank) {
  const std::vector<WorldOrError> worlds = Formed(3);
  RunRanks(3, [&](int rank) {
    Communicator& self = *(*worlds[rank])->communicator();
    if (rank != 1) self.PostMessage(77, absl::StrCat("from ", rank));
    EXPECT_THAT(self.AwaitMessages(77, 2, Soon()),
                IsOkAndHolds(ElementsAre(Pair(Rank(0), "from 0"), Pair(Rank(2), "from 2"))));
    EXPECT_THAT(self.AwaitMessages(78, 1, Deadline::AfterMs(10)), StatusIs(Code::kDeadlineExceeded));
  });
}

// The job's end, where ranks come to it one by one: rank 0, where the coordinator is, first.
TEST(World, ARankThatLeavesAfterTheLastCollectiveDisturbsNobody) {
  std::vector<WorldOrError> worlds = Formed(4);
  Gate left;
  RunRanks(4, [&](int rank) {
    Communicator& self = *(*worlds[rank])->communicator();
    std::vector<float> data(50'000, 1.0f);
    EXPECT_THAT(self.Run(AllReduce(&data)), IsOk());
    EXPECT_THAT(data, Each(4.0f));
    if (rank == 0) {
      worlds[0]->reset();
      left.Open();
      return;
    }
    EXPECT_THAT(left.Await(Soon()), IsOk());
    EXPECT_THAT(self.status(), IsOk());
    // A rank that still needs it is notified.
    EXPECT_THAT(self.Run(AllReduce(&data)), StatusIs(Code::kAborted, HasSubstr("rank ")));
  });
}

}  // namespace
}  // namespace lockstep
