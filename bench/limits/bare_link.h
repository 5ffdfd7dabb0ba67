// BareLink: two processes that swap bytes with as little in between as the medium allows: what Lockstep's transports are
// measured against.
//
// Busy-polled: a transfer never sleeps, so both processes need a core of their own. Not thread-safe. A peer that does not
// move for half a minute is DEADLINE_EXCEEDED.

#ifndef BENCH_LIMITS_BARE_LINK_H_
#define BENCH_LIMITS_BARE_LINK_H_

#include <chrono>
#include <cstddef>

#include "absl/status/status.h"

namespace lockstep {
namespace bench {

class BareLink {
 public:
  virtual ~BareLink() = default;

  absl::Status Send(const void* data, size_t bytes) { return Exchange(data, bytes, nullptr, 0); }
  absl::Status Receive(void* data, size_t bytes) { return Exchange(nullptr, 0, data, bytes); }
  // Both ways at once. The other side makes the call that matches.
  virtual absl::Status Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) = 0;
};

// How long a transfer has not moved. Reading the clock after every poll would show in the shortest transfers.
class BarePatience {
 public:
  void Moved() { idle_polls_ = 0; }

  // After a poll that moved nothing.
  absl::Status NothingMoved() {
    if (++idle_polls_ % kPollsPerLook != 0) return absl::OkStatus();
    const Clock::time_point now = Clock::now();
    if (idle_polls_ == kPollsPerLook) idle_since_ = now;
    if (now - idle_since_ > kPatience) return absl::DeadlineExceededError("the peer does not move");
    return absl::OkStatus();
  }

  static constexpr std::chrono::seconds kPatience{30};

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kPollsPerLook = 4096;

  int idle_polls_ = 0;
  Clock::time_point idle_since_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_BARE_LINK_H_
