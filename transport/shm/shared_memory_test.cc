#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
constexpr int kNoFilter = 99;       // what a child answers in which no call can be refused

UniqueFd Copy(const SharedMemory& memory) { return Duplicate(memory.descriptor()); }

TEST(SharedMemory, IsTheSameForWhoeverAttachesIt) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SharedMemory made, SharedMemory::Create(10'000));
  EXPECT_EQ(made.bytes(), 12'288);
  EXPECT_EQ(made.data()[9'999], 0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SharedMemory attached, SharedMemory::Attach(Copy(made), 10'000));
  EXPECT_NE(made.data(), attached.data());
  made.data()[12'287] = 7;
  EXPECT_EQ(attached.data()[12'287], 7);
  // The mapping outlives its maker's.
  made = SharedMemory();
  EXPECT_EQ(made.data(), nullptr);
  EXPECT_EQ(attached.data()[12'287], 7);
}

TEST(SharedMemory, CanNotChangeItsSize) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SharedMemory made, SharedMemory::Create(8192));
  for (const off_t bytes : {4096, 16'384}) {
    EXPECT_EQ(ftruncate(made.descriptor(), bytes), -1);
    EXPECT_EQ(errno, EPERM);
  }
}

TEST(SharedMemory, OfAPeerIsCheckedBeforeItIsMapped) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SharedMemory made, SharedMemory::Create(8192));
  EXPECT_THAT(SharedMemory::Attach(Copy(made), 16'384),
              StatusIs(Code::kFailedPrecondition, HasSubstr("has 8192 bytes, not the 16384")));
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_THAT(SharedMemory::Attach(std::move(unsealed), 8192),
              StatusIs(Code::kFailedPrecondition, HasSubstr("is not sealed")));
  UniqueFd no_memory(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(SharedMemory::Attach(std::move(no_memory), 0),
              StatusIs(Code::kFailedPrecondition, HasSubstr("is not sealed")));
}

// In a child, whose limits are its own. Returns 0 when the creation fails and names the limit.
int CreateUnder(int resource, rlim_t limit, size_t bytes, absl::string_view name) {
  return RunInForkedChild(
      [&] {
        const rlimit limits = {limit, limit};
        if (setrlimit(static_cast<__rlimit_resource>(resource), &limits) != 0) return 1;
        const absl::Status status = SharedMemory::Create(bytes).status();
        if (!absl::IsResourceExhausted(status)) return 2;
        return absl::StrContains(status.message(), name) ? 0 : 3;
      },
      Deadline::AfterMs(30'000));
}

TEST(SharedMemory, LimitsAreNamed) {
  // The kernel would send SIGXFSZ.
  EXPECT_EQ(CreateUnder(RLIMIT_FSIZE, 4096, 8192, "RLIMIT_FSIZE allows 4096"), 0);
  EXPECT_EQ(CreateUnder(RLIMIT_NOFILE, 0, 8192, "RLIMIT_NOFILE allows 0"), 0);
}

TEST(SharedMemory, ALimitOfAddressSpaceIsNamed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory takes more than any such limit";
#else
  // More than this program has, less than it would have with the new memory.
  EXPECT_EQ(CreateUnder(RLIMIT_AS, size_t{1} << 30, size_t{1} << 30, "RLIMIT_AS allows 1073741824"), 0);
#endif
}

TEST(SharedMemory, HugePagesAreUsedWhereThereAreAny) {
  const int in_child = RunInForkedChild(
      [] {
        // As a kernel without them answers.
        for (const int advice : {MADV_HUGEPAGE, kPopulateWrite}) {
          if (!Refuse({SYS_madvise, EINVAL, 2, static_cast<uint32_t>(advice)}).ok()) return kNoFilter;
        }
        absl::StatusOr<SharedMemory> made = SharedMemory::Create(size_t{4} << 20, SharedMemory::Pages::kHuge);
        if (!made.ok()) return 2;
        made->data()[made->bytes() - 1] = 1;
        return 0;
      },
      Deadline::AfterMs(30'000));
  if (in_child == kNoFilter) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(in_child, 0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SharedMemory made, SharedMemory::Create(size_t{4} << 20, SharedMemory::Pages::kHuge));
  made.data()[made.bytes() - 1] = 1;
}

// As in a container that forbids it, and on a kernel that does not know it.
TEST(SharedMemory, ThatCannotBeMadeHereIsUnavailable) {
  for (const int error : {EPERM, ENOSYS}) {
    const int in_child = RunInForkedChild(
        [error] {
          if (!Refuse({SYS_memfd_create, error}).ok()) return kNoFilter;
          const absl::Status status = SharedMemory::Create(4096).status();
          if (!absl::IsUnavailable(status)) return 2;
          return status.message() == absl::StrCat("memfd_create: ", strerror(error)) ? 0 : 3;
        },
        Deadline::AfterMs(30'000));
    if (in_child == kNoFilter) GTEST_SKIP() << "no filters of system calls here";
    EXPECT_EQ(in_child, 0) << strerror(error);
  }
}

TEST(SharedMemory, IsNotInheritedByAForkedChild) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(SharedMemory made, SharedMemory::Create(4096));
  char* const data = made.data();
  const int in_child = RunInForkedChild(
      [&] {
        // Nothing is mapped there, so something of the child's may be; forgetting the memory must leave it alone.
        if (msync(data, 4096, MS_ASYNC) == 0 || errno != ENOMEM) return 1;
        void* const own = mmap(data, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (own != data) return 2;
        made = SharedMemory();
        *data = 1;
        return 0;
      },
      Deadline::AfterMs(30'000));
  EXPECT_EQ(in_child, 0);
  *data = 2;
}

}  // namespace
}  // namespace lockstep
