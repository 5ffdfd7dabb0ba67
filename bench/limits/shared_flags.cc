#include "bench/limits/shared_flags.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/deadline.h"
#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int64_t kPatienceMs = 30'000;
constexpr int kPollsPerLook = 4096;  // at the clock
constexpr int kSpins = 10'000;

}  // namespace

absl::StatusOr<SharedMapping> SharedMapping::Create(size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, /*fd=*/-1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map shared memory");
  return SharedMapping(static_cast<char*>(data), bytes);
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::Status SharedFlag::Await(uint64_t at_least, int spins) const {
  int64_t polls = 0;
  Deadline deadline = Deadline::Infinite();
  while (count.load(std::memory_order_acquire) < at_least) {
    if (++polls >= spins) sched_yield();
    if (polls % kPollsPerLook != 0) continue;
    if (deadline.infinite()) deadline = Deadline::AfterMs(kPatienceMs);
    if (deadline.passed()) return absl::DeadlineExceededError("another rank does not move");
  }
  return absl::OkStatus();
}

int SpinsFor(int ranks) { return ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? kSpins : 1; }

}  // namespace bench
}  // namespace lockstep
