// One rank that a limit keeps from making its part of a symmetric buffer. Method: three ranks are processes of this host; rank 1 sets
// itself a limit once there is a world, and all allocate. It is told the limit, the others its name, and the communicator carries
// out what comes next; where the limit is lifted, memory too.

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
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
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr int kLimited = 1;

Deadline Soon() { return Deadline::AfterMs(40'000); }

// What the limit leaves, and what is asked of it.
struct Case {
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

  const char* name;
  __rlimit_resource resource;
  size_t room;   // beyond what is in use
  size_t bytes;  // to be allocated
  const char* error;
};

const Case kCases[] = {
    // Mailboxes fit.
    {"FileSize", RLIMIT_FSIZE, size_t{1} << 20, size_t{4} << 20,
     "4194304 bytes of shared memory: RLIMIT_FSIZE allows 1048576"},
    {"AddressSpace", RLIMIT_AS, size_t{32} << 20, size_t{64} << 20, "no room to map it: RLIMIT_AS allows "}};

const Case& Find(absl::string_view name) { return name == kCases[0].name ? kCases[0] : kCases[1]; }

// Of this process, in bytes: the first number of statm, which counts pages.
absl::StatusOr<size_t> AddressSpace() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  if (statm >> pages) return pages * 4096;
  return absl::UnavailableError("no /proc/self/statm here");
}

absl::Status Begin(const Case& c) {
  if (c.resource != RLIMIT_AS) return Limit(c.resource, c.room);
  LOCKSTEP_ASSIGN_OR_RETURN(const size_t used, AddressSpace());
  return Limit(c.resource, used + c.room);
}

// Arguments: the address of the store, the case. Says how allocating went, then that all the rest went well.
LOCKSTEP_RANK_FUNCTION(Allocator) {
  const Case& c = Find(self.arguments()[1]);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.transport = "shm";
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(options));
  Communicator* const communicator = world->communicator();
  if (self.rank() == kLimited) LOCKSTEP_RETURN_IF_ERROR(Begin(c));
  LOCKSTEP_RETURN_IF_ERROR(self.Send(communicator->Allocate(c.bytes).status().ToString()));
  LOCKSTEP_RETURN_IF_ERROR(communicator->status());
  LOCKSTEP_RETURN_IF_ERROR(RunAllCollectives(communicator));
  if (self.rank() == kLimited) LOCKSTEP_RETURN_IF_ERROR(Limit(c.resource, RLIM_INFINITY));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricBuffer> buffer, communicator->Allocate(c.bytes));
  EXPECT_TRUE(buffer->shared());
  return RunAllCollectives(communicator);
}

// ---- Memory itself

// What the kernel shows to each rank, in a folder: to rank 1 perhaps a control group of its own.
class ShownMemory {
 public:
  ShownMemory() : folder_(std::filesystem::path(::testing::TempDir()) / absl::StrCat("allocation_limit_", getpid())) {}
  ~ShownMemory() { std::filesystem::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }
  std::string folder() const { return folder_.string(); }

 private:
  const std::filesystem::path folder_;
};

// Arguments: the address of the store, the folder, sizes. Says how allocating each went, then that all the rest went well.
LOCKSTEP_RANK_FUNCTION(AllocatorOfWhatIsLeft) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(options));
  Communicator* const communicator = world->communicator();
  const std::string folder = absl::StrCat(self.arguments()[1], "/", self.rank());
  SetLimitFilesForTesting({folder, folder});
  for (size_t i = 2; i < self.arguments().size(); ++i) {
    const size_t bytes = std::stoull(self.arguments()[i]);
    LOCKSTEP_RETURN_IF_ERROR(self.Send(communicator->Allocate(bytes).status().ToString()));
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator->status());
  return RunAllCollectives(communicator);
}

class MemoryLeftTest : public ::testing::Test {
 protected:
  // Answers of the ranks, by size and rank.
  std::vector<std::vector<std::string>> Allocate(const std::vector<std::string>& sizes) {
    std::vector<std::vector<std::string>> answers;
    absl::StatusOr<std::unique_ptr<TcpStoreServer>> store = ServeTestStore();
    EXPECT_THAT(store, IsOk());
    ProcessGroup::Options options;
    options.size = kRanks;
    options.arguments = {(*store)->address().ToString(), shown_.folder()};
    options.arguments.insert(options.arguments.end(), sizes.begin(), sizes.end());
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group = ProcessGroup::Start("AllocatorOfWhatIsLeft", options);
    EXPECT_THAT(group, IsOk());
    for (size_t i = 0; i < sizes.size(); ++i) {
      answers.emplace_back();
      for (int rank = 0; rank < kRanks; ++rank) {
        const absl::StatusOr<std::string> answer = (*group)->Receive(rank, Soon());
        answers.back().push_back(answer.ok() ? *answer : answer.status().ToString());
      }
    }
    EXPECT_THAT((*group)->WaitAll(Soon()), Each(IsOk()));
    return answers;
  }

  const ShownMemory shown_;
};

// Each part alone would fit.
TEST_F(MemoryLeftTest, OfTheMachineIsForAllRanksThere) {
  for (int rank = 0; rank < kRanks; ++rank) shown_.Write(absl::StrCat(rank, "/meminfo"), "MemAvailable: 10240 kB");
  const auto answers = Allocate({"4194304", "3145728"});
  EXPECT_THAT(answers[0], Each(AllOf(StartsWith("RESOURCE_EXHAUSTED: "),
                                     HasSubstr("need 12582912 bytes of memory together, 4194304 of them this rank; "
                                               "10485760 bytes are left by MemAvailable"))));
  EXPECT_THAT(answers[1], Each("OK"));
}

TEST_F(MemoryLeftTest, OfAControlGroupIsForTheRanksInIt) {
  shown_.Write("1/self/cgroup", "0::/");
  shown_.Write("1/memory.max", "5000000");
  shown_.Write("1/memory.current", "1000000");
  const auto answers = Allocate({"4194304", "3145728"});
  EXPECT_THAT(answers[0][1], AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr("need 4194304 bytes of memory"),
                                   HasSubstr("; 4000000 bytes are left by "), HasSubstr("/1/memory.max")));
  for (const int other : {0, 2}) {
    EXPECT_THAT(answers[0][other], AllOf(StartsWith("UNAVAILABLE: "), HasSubstr("rank 1 has no memory"),
                                         HasSubstr("4194304"), HasSubstr("4000000")));
  }
  EXPECT_THAT(answers[1], Each("OK"));
}

// ---- Limits of a process

class AllocationLimitTest : public ::testing::TestWithParam<Case> {};

TEST_P(AllocationLimitTest, IsToldByNameAndTheCommunicatorGoesOn) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  if (GetParam().resource == RLIMIT_AS) GTEST_SKIP() << "a sanitizer's shadow memory takes more than any such limit";
#endif
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<TcpStoreServer> store, ServeTestStore());
  ProcessGroup::Options options;
  options.size = kRanks;
  options.arguments = {store->address().ToString(), GetParam().name};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ProcessGroup> group, ProcessGroup::Start("Allocator", options));
  for (int rank = 0; rank < kRanks; ++rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string answer, group->Receive(rank, Soon()));
    if (rank == kLimited) {
      EXPECT_THAT(answer, AllOf(StartsWith("RESOURCE_EXHAUSTED: "), HasSubstr(GetParam().error)));
    } else {
      EXPECT_THAT(answer, AllOf(StartsWith("UNAVAILABLE: "), HasSubstr("rank 1")));
    }
  }
  EXPECT_THAT(group->WaitAll(Soon()), Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(Of, AllocationLimitTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
