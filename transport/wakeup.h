// A descriptor by which any thread ends another's poll.

#ifndef TRANSPORT_WAKEUP_H_
#define TRANSPORT_WAKEUP_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/fork.h"
#include "base/status.h"

namespace lockstep {

// Takes the count out of an eventfd or timerfd, which is not readable then.
inline void DrainCount(int descriptor) {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(descriptor, &count, sizeof(count));  // EAGAIN: there was none
}

// Readable from Signal() to Clear(). Thread-safe.
class Wakeup {
 public:
  static absl::StatusOr<Wakeup> Create() {
    UniqueFd descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!descriptor.valid()) return ErrnoStatus(errno, "eventfd");
    return Wakeup(std::move(descriptor));
  }

  int descriptor() const { return descriptor_.get(); }

  void Signal() const {
    // In a forked child the number may be something else's by now.
    if (fork_generation_ != ForkGeneration()) return;
    const uint64_t one = 1;
    // Fails only when the counter is full, and then it is readable.
    [[maybe_unused]] const ssize_t written = write(descriptor_.get(), &one, sizeof(one));
  }
  void Clear() const { DrainCount(descriptor_.get()); }

 private:
  explicit Wakeup(UniqueFd descriptor) : descriptor_(std::move(descriptor)), fork_generation_(ForkGeneration()) {}

  UniqueFd descriptor_;
  uint64_t fork_generation_;
};

}  // namespace lockstep

#endif  // TRANSPORT_WAKEUP_H_
