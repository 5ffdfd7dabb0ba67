// Worlds over libfabric: what they say of providers, and what they do where ranks have different ones, or none.

#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/log_testing.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "tests/worlds.h"
#include "transport/ofi/provider.h"
#include "transport/store/store_memory.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// The providers that this machine's libfabric offers to those that name none, in the order of preference.
std::vector<std::string> ProvidersHere() {
  std::vector<std::string> providers;
  const absl::StatusOr<const OfiApi*> api = Ofi();
  EXPECT_THAT(api, IsOk());
  const absl::StatusOr<OfiProvider> found = FindProvider(**api, {});
  EXPECT_THAT(found, IsOk());
  for (const OfiCandidate& candidate : found->candidates) {
    const bool usable = candidate.rejected.empty() || absl::StartsWith(candidate.rejected, "is less preferred");
    const bool known = std::find(providers.begin(), providers.end(), candidate.provider) != providers.end();
    if (usable && !known) providers.push_back(candidate.provider);
  }
  EXPECT_GE(providers.size(), 1u);
  return providers;
}

TEST(WorldOverOfi, TellsWhichProviderItUsesAndWhyNoneOfTheOthers) {
  const std::vector<std::string> providers = ProvidersHere();
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 2, [&](int, WorldOptions* options) {
    options->transport = "ofi";
    options->ofi_provider = providers.back();
    options->interface = "=lo";
  });
  ASSERT_THAT(StatusesOf(worlds), Each(IsOk()));
  EXPECT_THAT((*worlds[0])->communicator()->Describe(),
              AllOf(ContainsRegex("\nrank 1 .* over ofi " + providers.back() + " 127.0.0.1:[0-9]+\n"),
                    HasSubstr("\nproviders of libfabric:\n" + providers.back() + " lo 127.0.0.1: chosen\n"),
                    ContainsRegex("\nshm .*: is not the provider that was asked for")));
}

// Where anything is.
TEST(WorldOverOfi, ThatItsDataIsNotProtectedIsSaidOnce) {
  const LogLevel level = GetLogLevel();
  SetLogLevel(LogLevel::kInfo);
  for (const char* const security : {"none", "authenticate"}) {
    LogLines log;
    MemoryStore store;
    const std::vector<WorldOrError> worlds = CreateWorlds(&store, 2, [&](int, WorldOptions* options) {
      options->transport = "ofi";
      options->security = security;
    });
    ASSERT_THAT(StatusesOf(worlds), Each(IsOk()));
    int said = 0;
    for (const std::string& line : log.lines()) {
      said += line.find("data over libfabric is not protected") != std::string::npos;
    }
    const bool none = std::string(security) == "none";
    EXPECT_EQ(said, none ? 0 : 1) << security;
    EXPECT_THAT((*worlds[1])->communicator()->Describe(),
                HasSubstr(none ? "security: none" : "data over libfabric is not protected"));
  }
  SetLogLevel(level);
}

TEST(WorldOverOfi, MixedProvidersAreTheSameErrorOnAllRanks) {
  const std::string best = ProvidersHere()[0];
  MemoryStore store;
  const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(&store, 3, [&](int rank, WorldOptions* options) {
    options->transport = "ofi";
    options->ofi_provider = rank == 1 ? "shm" : best;
  }));
  EXPECT_THAT(errors, Each(Eq(errors[0])));
  EXPECT_THAT(errors[0], StatusIs(Code::kFailedPrecondition,
                                  HasSubstr("ofi_provider: " + best + " on ranks 0, 2, shm on rank 1")));
}

TEST(WorldOverOfi, AProviderThatNobodyHasIsToldWithTheOnesThatThereAre) {
  MemoryStore store;
  const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(&store, 2, [](int, WorldOptions* options) {
    options->transport = "ofi";
    options->ofi_provider = "pigeon";
  }));
  EXPECT_THAT(errors, Each(StatusIs(Code::kNotFound, AllOf(HasSubstr("the transport is ofi"), HasSubstr("pigeon"),
                                                           HasSubstr("tcp;ofi_rxm")))));
}

TEST(WorldOverOfi, ADomainIsPinnedOrToldToBeMissing) {
  MemoryStore store;
  const std::vector<absl::Status> statuses = StatusesOf(CreateWorlds(&store, 2, [](int, WorldOptions* options) {
    options->transport = "ofi";
    options->interface = "=lo";
    options->ofi_domain = "lo";
  }));
  EXPECT_THAT(statuses, Each(IsOk()));
  MemoryStore other_store;
  const std::vector<absl::Status> errors = StatusesOf(CreateWorlds(&other_store, 2, [](int, WorldOptions* options) {
    options->transport = "ofi";
    options->ofi_domain = "mlx5_17";
  }));
  EXPECT_THAT(errors, Each(StatusIs(Code::kNotFound, HasSubstr("is not the domain that was asked for (mlx5_17)"))));
}

// Every collective by every algorithm that is carried out with messages. DATA_LOSS for a wrong result.
absl::Status RunEveryAlgorithm(Communicator* self, size_t count) {
  for (const Collective collective : kAllCollectives) {
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      if (UsesSharedMemory(algorithm)) continue;
      CollectiveCase c;
      c.collective = collective;
      c.algorithm = algorithm;
      c.count = count;
      const CaseReference reference(c, self->size());
      CaseRun run(reference, self->rank());
      LOCKSTEP_RETURN_IF_ERROR(Annotate(self->Run(run.request()), Name(algorithm)));
      if (const std::string wrong = run.Check(); !wrong.empty()) return absl::DataLossError(wrong);
    }
  }
  return absl::OkStatus();
}

// Makes a world over libfabric; some ranks look for another library than there is.
//   arguments   address of the store, provider, elements of a vector, "0,2" for the ranks without the library
LOCKSTEP_RANK_FUNCTION(RankOverOfi) {
  const std::vector<std::string>& arguments = self.arguments();
  if (arguments[3].find(absl::StrCat(self.rank())) != std::string::npos) {
    setenv("LOCKSTEP_OFI_LIBRARY", "/nowhere/libfabric.so", /*overwrite=*/1);
  }
  size_t count = 0;
  if (!absl::SimpleAtoi(arguments[2], &count)) return absl::InvalidArgumentError(arguments[2]);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStoreClient> store, ConnectToTestStore(arguments[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.transport = "ofi";
  options.ofi_provider = arguments[1];
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(options));
  return RunEveryAlgorithm(world->communicator(), count);
}

std::vector<absl::Status> EndsOfRanks(int size, const std::string& provider, size_t count, const std::string& without) {
  const absl::StatusOr<std::unique_ptr<TcpStoreServer>> server = ServeTestStore();
  EXPECT_THAT(server, IsOk());
  ProcessGroup::Options options;
  options.size = size;
  options.arguments = {(*server)->address().ToString(), provider, absl::StrCat(count), without};
  const absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ProcessGroup::Start("RankOverOfi", options);
  EXPECT_THAT(group, IsOk());
  return (*group)->WaitAll(CommTestDeadline());
}

// Over shm, whose ranks must be processes. Over other providers: world_conformance_test.cc.
TEST(WorldOverOfi, EveryAlgorithmOfEveryCollectiveIsRightInTheProviderShm) {
  for (const size_t count : {size_t{5}, size_t{300'000}}) {
    EXPECT_THAT(EndsOfRanks(3, "shm", count, ""), Each(IsOk())) << count << " elements";
  }
}
// A short message to and from every other rank, so many times at once.
absl::Status SwapMessages(Communicator* self, int times) {
  std::array<char, 64> sent = {};
  std::array<char, 64> received;
  std::vector<Work> works;
  for (int i = 0; i < times; ++i) {
    for (int other = 0; other < self->size(); ++other) {
      if (Rank(other) == self->rank()) continue;
      ReceiveRequest receive;
      receive.source = Rank(other);
      receive.data = received.data();
      receive.bytes = received.size();
      LOCKSTEP_ASSIGN_OR_RETURN(Work arriving, self->StartReceive(receive));
      works.push_back(std::move(arriving));
      SendRequest send;
      send.target = Rank(other);
      send.data = sent.data();
      send.bytes = sent.size();
      LOCKSTEP_ASSIGN_OR_RETURN(Work leaving, self->StartSend(send));
      works.push_back(std::move(leaving));
    }
  }
  for (Work& work : works) LOCKSTEP_RETURN_IF_ERROR(work.Wait(Deadline::Infinite()));
  return absl::OkStatus();
}

// Swaps messages until that fails; says "running" on the way.
//   arguments   address of the store
LOCKSTEP_RANK_FUNCTION(RankOverShm) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStoreClient> store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.transport = "ofi";
  options.ofi_provider = "shm";
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(options));
  LOCKSTEP_RETURN_IF_ERROR(SwapMessages(world->communicator(), 1));
  LOCKSTEP_RETURN_IF_ERROR(self.Send("running"));
  for (;;) LOCKSTEP_RETURN_IF_ERROR(SwapMessages(world->communicator(), 32));
}

// What a process has of the provider's shared memory, which stays when it is killed. Asked of the process itself: what
// is called alike in /dev/shm may be another container's.
std::set<std::filesystem::path> SharedMemoryOf(pid_t pid) {
  std::set<std::filesystem::path> files;
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  const std::string own = absl::StrCat("/dev/shm/lockstep-", pid, "-");
  for (std::string line; std::getline(maps, line);) {
    const size_t name = line.find('/');
    if (name != std::string::npos && absl::StartsWith(line.substr(name), own)) files.insert(line.substr(name));
  }
  return files;
}

// The provider's locks lie in memory that the ranks share, and die with who holds one. Method: a rank is killed amid
// messages as fast as they go; those that it leaves behind either hear of its death, as over any transport, or have the
// guard end their process. None hangs.
TEST(WorldOverOfi, NobodyHangsForARankThatIsKilledInsideTheProviderShm) {
  constexpr int kVictim = 2;
  for (int round = 0; round < 3; ++round) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TcpStoreServer> server, ServeTestStore());
    ProcessGroup::Options options;
    options.size = 3;
    options.arguments = {server->address().ToString()};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ProcessGroup> group,
                                  ProcessGroup::Start("RankOverShm", options));
    for (int rank = 0; rank < options.size; ++rank) {
      EXPECT_THAT(group->Receive(rank, CommTestDeadline()), IsOkAndHolds("running"));
    }
    std::set<std::filesystem::path> shared;
    for (int rank = 0; rank < options.size; ++rank) shared.merge(SharedMemoryOf(group->pid(rank)));
    EXPECT_GE(static_cast<int>(shared.size()), options.size);
    ASSERT_THAT(group->Signal(kVictim, SIGKILL), IsOk());
    for (int rank = 0; rank < kVictim; ++rank) {
      const absl::Status end = group->Wait(rank, CommTestDeadline());
      if (absl::IsUnknown(end)) {
        EXPECT_THAT(group->Output(rank), HasSubstr("provider shm has not returned from a call"));
      } else {
        EXPECT_THAT(end, StatusIs(Code::kAborted, HasSubstr("rank 2")));
      }
    }
    for (const std::filesystem::path& file : shared) std::filesystem::remove(file);
  }
}

// A message takes it some milliseconds: a few will do.
TEST(WorldOverOfi, SocketsWork) {
  const std::vector<absl::Status> ends = EndsOfRanks(2, "sockets", 5, "");
  EXPECT_THAT(ends, Each(IsOk()));
}

TEST(WorldOverOfi, ARankWithoutTheLibraryIsTheSameErrorOnAllRanks) {
  const std::vector<absl::Status> ends = EndsOfRanks(3, "", 5, "1");
  EXPECT_THAT(ends, Each(Eq(ends[0])));
  EXPECT_THAT(ends[0], StatusIs(Code::kFailedPrecondition,
                                AllOf(HasSubstr("ofi_provider: " + ProvidersHere()[0] + " on ranks 0, 2"),
                                      HasSubstr("none ("), HasSubstr("on rank 1"))));
}

TEST(WorldOverOfi, WithoutTheLibraryItSaysSo) {
  EXPECT_THAT(
      EndsOfRanks(2, "", 5, "0,1"),
      Each(StatusIs(Code::kUnavailable, AllOf(HasSubstr("the transport is ofi"), HasSubstr("/nowhere/libfabric.so")))));
}

}  // namespace
}  // namespace lockstep
