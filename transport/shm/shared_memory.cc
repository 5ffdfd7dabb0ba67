#include "transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t RoundUpToPages(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

std::string LimitText(int resource) {
  rlimit limit = {};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "unlimited";
  }
  return absl::StrCat(limit.rlim_cur);
}

absl::Status Exhausted(size_t bytes, absl::string_view why) {
  return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes of shared memory: ", why));
}

absl::Status CreationStatus(int error, size_t bytes) {
  if (error == EMFILE) return Exhausted(bytes, absl::StrCat("RLIMIT_NOFILE allows ", LimitText(RLIMIT_NOFILE)));
  if (error == ENFILE) return Exhausted(bytes, "the system's table of open files is full");
  if (error == ENOMEM) return Exhausted(bytes, absl::StrCat("out of memory: ", LimitsOnMemory()));
  // Forbidden or unknown here, as in some containers.
  return absl::UnavailableError(ErrnoStatus(error, "memfd_create").message());
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  descriptor_ = std::move(other.descriptor_);
  fork_generation_ = other.fork_generation_;
  return *this;
}

absl::StatusOr<SharedMemory> SharedMemory::Create(size_t bytes, Pages pages) {
  bytes = RoundUpToPages(bytes);
  if (const std::string why = WhyNoFile(bytes); !why.empty()) return Exhausted(bytes, why);
  // Beyond what is left the kernel ends processes rather than fail a call.
  if (const std::string why = WhyNoMemory(bytes); !why.empty()) return Exhausted(bytes, why);
  const int made = memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0) return CreationStatus(errno, bytes);
  UniqueFd descriptor(made);
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, "size shared memory");
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus(errno, "seal shared memory");
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory memory, Map(std::move(descriptor), bytes, pages));
  // Through the mapping, which knows of huge pages; fallocate does not. What fails here, fails below with its reason.
  if (pages == Pages::kHuge) (void)madvise(memory.data_, bytes, kPopulateWrite);
  // Allocates what has no page yet; later there may be none left.
  while (fallocate(memory.descriptor(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == ENOSPC || errno == ENOMEM) return Exhausted(bytes, "out of memory");
    if (errno != EINTR) return ErrnoStatus(errno, "fallocate shared memory");
  }
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Attach(UniqueFd descriptor, size_t bytes, Pages pages) {
  bytes = RoundUpToPages(bytes);
  struct stat info = {};
  if (fstat(descriptor.get(), &info) != 0) return ErrnoStatus(errno, "fstat a peer's shared memory");
  if (info.st_size != static_cast<off_t>(bytes)) {
    return absl::FailedPreconditionError(
        absl::StrCat("a peer's shared memory has ", info.st_size, " bytes, not the ", bytes, " it is said to have"));
  }
  // Fails on what is no memfd.
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::FailedPreconditionError("a peer's shared memory is not sealed: it might shrink under us");
  }
  absl::StatusOr<SharedMemory> memory = Map(std::move(descriptor), bytes, pages);
  if (memory.ok()) memory->TakeDescriptor().reset();
  return memory;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(UniqueFd descriptor, size_t bytes, Pages pages) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    if (errno == ENOMEM) {
      return Exhausted(bytes, absl::StrCat("no room to map it: ", LimitsOnMemory()));
    }
    return ErrnoStatus(errno, "map shared memory");
  }
  SharedMemory memory;
  memory.data_ = data;
  memory.bytes_ = bytes;
  memory.descriptor_ = std::move(descriptor);
  memory.fork_generation_ = ForkGeneration();
  if (madvise(data, bytes, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "keep shared memory from forked children");
  if (pages == Pages::kHuge) (void)madvise(data, bytes, MADV_HUGEPAGE);
  return memory;
}

void SharedMemory::Unmap() {
  // In a forked child something else may lie there by now.
  if (data_ != nullptr && fork_generation_ == ForkGeneration()) (void)munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace lockstep
