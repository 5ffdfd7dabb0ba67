// One rank whose process lacks what shared memory needs: permissions, as in some containers, or room under a limit. Method: three
// ranks are processes of this host, and rank 1 is hindered before it makes its world. It must do with TCP where it can do
// no better, say so and why, as the others say of it; the others go on sharing memory, and all collectives work. Where
// shared memory was asked for by name, every rank is told why there is no world.

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kHindered = 1;

Deadline Soon() { return Deadline::AfterMs(40'000); }

// ---- What may be in the way

absl::Status Unshare(int what) {
  if (unshare(what) == 0) return absl::OkStatus();
  return absl::UnavailableError(ErrnoStatus(errno, "unshare").message());
}

// Goes on in a child, whose process id is 1 there, and ends with it.
absl::Status EnterProcessNamespace() {
  LOCKSTEP_RETURN_IF_ERROR(Unshare(CLONE_NEWPID));
  const pid_t child = fork();
  if (child == 0) return absl::OkStatus();
  if (child < 0) return ErrnoStatus(errno, "fork");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

absl::Status BecomeAnotherUser() {
  if (setresuid(12345, 12345, 12345) == 0) return absl::OkStatus();
  return absl::UnavailableError(ErrnoStatus(errno, "setresuid").message());
}

struct Hindrance {
  friend void PrintTo(const Hindrance& hindrance, std::ostream* out) { *out << hindrance.name; }

  const char* name;
  // UNAVAILABLE where this machine does not let us.
  absl::Status (*begin)();
  // Why not, as the hindered rank says of the others; null when it shares memory all the same.
  const char* here;
  // As the others say of it.
  const char* there;
};

// The room of a mailbox; less would already be in the way of files that a rank writes.
constexpr rlim_t kFileBytesMax = 65'536;

const Hindrance kHindrances[] = {
    {"ForbiddenMemory",
     [] {
       return Refuse({SYS_memfd_create, EPERM});
     },
     "memfd_create: Operation not permitted", "it can make no shared memory: memfd_create: Operation not permitted"},
    {"UnknownMemory",
     [] {
       return Refuse({SYS_memfd_create, ENOSYS});
     },
     "memfd_create: Function not implemented", "it can make no shared memory: memfd_create: Function not implemented"},
    {"ForbiddenUnixSockets",
     [] {
       return Refuse({SYS_socket, EAFNOSUPPORT, 0, AF_UNIX});
     },
     "unix socket: Address family not supported by protocol",
     "it can make no shared memory: unix socket: Address family not supported by protocol"},
    {"FilesTooSmall", [] { return Limit(RLIMIT_FSIZE, kFileBytesMax); },
     "bytes of shared memory: RLIMIT_FSIZE allows 65536",
     "it can make no shared memory: [0-9]+ bytes of shared memory: RLIMIT_FSIZE allows 65536"},
    {"AnotherUser", BecomeAnotherUser, "its process belongs to user [0-9]+, ours to user 12345",
     "its process belongs to user 12345, ours to user [0-9]+"},
    {"OtherUsers", [] { return Unshare(CLONE_NEWUSER); }, "its process is in another user namespace",
     "its process is in another user namespace"},
    // None of these is in the way.
    {"NoLockedMemory", [] { return Limit(RLIMIT_MEMLOCK, 0); }, nullptr, nullptr},
    {"NoHugePages",
     [] {
       return Refuse({SYS_madvise, EINVAL, 2, MADV_HUGEPAGE});
     },
     nullptr, nullptr},
    {"OtherFileSystemsAndNames", [] { return Unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWUTS); }, nullptr, nullptr},
    {"OtherProcesses", EnterProcessNamespace, nullptr, nullptr},
};

// In the way of any world: not one of the above.
const Hindrance kNoThreads = {"NoThreads",
                              [] {
                                LOCKSTEP_RETURN_IF_ERROR(Refuse({SYS_clone3, EAGAIN}));
                                return Refuse({SYS_clone, EAGAIN});
                              },
                              nullptr, nullptr};

const Hindrance& Find(absl::string_view name) {
  if (name == kNoThreads.name) return kNoThreads;
  for (const Hindrance& hindrance : kHindrances) {
    if (hindrance.name == name) return hindrance;
  }
  return kHindrances[0];
}

// ---- In the processes

constexpr char kCannotBeHindered[] = "cannot be hindered: ";

// Arguments: the address of the store, the hindrance, the transport. Says "hindered", then how making the world went; if well,
// how it is connected, and leaves when told.
LOCKSTEP_RANK_FUNCTION(OneOfThem) {
  if (self.rank() == kHindered) {
    const absl::Status hindered = Find(self.arguments()[1]).begin();
    if (!hindered.ok()) return self.Send(absl::StrCat(kCannotBeHindered, hindered.message()));
  }
  LOCKSTEP_RETURN_IF_ERROR(self.Send("hindered"));
  LOCKSTEP_RETURN_IF_ERROR(self.Receive(Soon()).status());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.transport = self.arguments()[2];
  absl::StatusOr<std::unique_ptr<World>> world = World::Create(options);
  LOCKSTEP_RETURN_IF_ERROR(self.Send(world.status().ToString()));
  if (!world.ok()) return absl::OkStatus();
  Communicator* const communicator = (*world)->communicator();
  EXPECT_THAT(RunAllCollectives(communicator), IsOk());
  LOCKSTEP_RETURN_IF_ERROR(self.Send(communicator->Describe()));
  return self.Receive(Soon()).status();
}

// ---- In the test

class WorldHindranceTest : public ::testing::TestWithParam<Hindrance> {
 protected:
  // What each rank says of its world. Empty when rank 1 could not be hindered.
  std::vector<std::string> Create(const std::string& transport) {
    Start(transport);
    if (why_not_ != "hindered") return {};
    TellAll();
    return Answers();
  }
  void Start(const std::string& transport) {
    absl::StatusOr<std::unique_ptr<TcpStoreServer>> store = ServeTestStore();
    EXPECT_THAT(store, IsOk());
    store_ = *std::move(store);
    ProcessGroup::Options options;
    options.size = kRanks;
    options.arguments = {store_->address().ToString(), GetParam().name, transport};
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ProcessGroup::Start("OneOfThem", options);
    EXPECT_THAT(group, IsOk());
    group_ = *std::move(group);
    for (int rank = 0; rank < kRanks; ++rank) {
      why_not_ = Answer(rank);
      if (why_not_ != "hindered") return;
    }
  }
  std::string Answer(int rank) {
    const absl::StatusOr<std::string> answer = group_->Receive(rank, Soon());
    return answer.ok() ? *answer : absl::StrCat("no answer: ", answer.status().ToString());
  }
  std::vector<std::string> Answers() {
    std::vector<std::string> answers;
    for (int rank = 0; rank < kRanks; ++rank) answers.push_back(Answer(rank));
    return answers;
  }
  void TellAll() {
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_THAT(group_->Send(rank, "go on"), IsOk());
  }
  void ExpectGoodEnd() { EXPECT_THAT(group_->WaitAll(Soon()), Each(IsOk())); }

  std::string why_not_;
  std::unique_ptr<TcpStoreServer> store_;
  std::unique_ptr<ProcessGroup> group_;
};

TEST_P(WorldHindranceTest, FallsBackToTcpAndSaysWhy) {
  const std::vector<std::string> created = Create("auto");
  if (absl::StartsWith(why_not_, kCannotBeHindered)) GTEST_SKIP() << why_not_;
  EXPECT_THAT(created, Each("OK"));
  const std::vector<std::string> descriptions = Answers();
  const auto route = [](int peer, const char* why) {
    const std::string over =
        why == nullptr ? "shm\n" : absl::StrCat("tcp 127.0.0.1:[0-9]+ \\(not shm: [^\n]*", why, "\\)\n");
    return ContainsRegex(absl::StrCat("\nrank ", peer, " \\(host [^\n]*, pid [0-9]+\\) over ", over));
  };
  EXPECT_THAT(descriptions[kHindered], AllOf(route(0, GetParam().here), route(2, GetParam().here)));
  EXPECT_THAT(descriptions[0], AllOf(route(kHindered, GetParam().there), route(2, nullptr)));
  EXPECT_THAT(descriptions[2], AllOf(route(kHindered, GetParam().there), route(0, nullptr)));
  TellAll();
  ExpectGoodEnd();
}

TEST_P(WorldHindranceTest, WhoAskedForSharedMemoryByNameIsToldWhyThereIsNone) {
  const std::vector<std::string> created = Create("shm");
  if (absl::StartsWith(why_not_, kCannotBeHindered)) GTEST_SKIP() << why_not_;
  if (GetParam().here == nullptr) {
    EXPECT_THAT(created, Each("OK"));
    EXPECT_THAT(Answers(), Each(HasSubstr(" over shm\n")));
    TellAll();
  } else {
    const auto refused = [](const std::string& what, const char* why) {
      return ContainsRegex(absl::StrCat("^UNAVAILABLE: ", what, ": .*", why, " \\(and the transport is shm\\)$"));
    };
    EXPECT_THAT(
        created[kHindered],
        refused("(rank 1 can make no shared memory|no shared memory with rank 0 \\(host .*\\))", GetParam().here));
    for (const int rank : {0, 2}) {
      EXPECT_THAT(created[rank], refused("no shared memory with rank 1 \\(host .*\\)", GetParam().there));
    }
  }
  ExpectGoodEnd();
}

class WorldWithoutThreadsTest : public WorldHindranceTest {};

TEST_P(WorldWithoutThreadsTest, WhoCanHaveNoneIsToldWhatLimitsThem) {
  Start("auto");
  if (absl::StartsWith(why_not_, kCannotBeHindered)) GTEST_SKIP() << why_not_;
  TellAll();
  EXPECT_THAT(
      Answer(kHindered),
      AllOf(ContainsRegex("^RESOURCE_EXHAUSTED: .*start the thread lockstep-ctl: Resource temporarily unavailable: "),
            HasSubstr("RLIMIT_NPROC allows ")));
  for (const int other : {0, 2}) EXPECT_THAT(Answer(other), HasSubstr("start the thread lockstep-ctl"));
}

INSTANTIATE_TEST_SUITE_P(By, WorldWithoutThreadsTest, ::testing::Values(kNoThreads),
                         [](const ::testing::TestParamInfo<Hindrance>& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(By, WorldHindranceTest, ::testing::ValuesIn(kHindrances),
                         [](const ::testing::TestParamInfo<Hindrance>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
