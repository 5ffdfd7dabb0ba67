// A point in time at which waiting ends, by the steady clock: setting the machine's time does not move it.

#ifndef BASE_DEADLINE_H_
#define BASE_DEADLINE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace lockstep {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline After(std::chrono::nanoseconds duration) {
    const Clock::time_point now = Clock::now();
    if (duration >= Clock::time_point::max() - now) return Infinite();
    return Deadline(now + duration);
  }
  static Deadline AfterMs(int64_t milliseconds) {
    if (milliseconds > kMaxMs) return Infinite();
    if (milliseconds <= 0) return Now();
    return After(std::chrono::milliseconds(milliseconds));
  }

  static Deadline At(Clock::time_point time) { return Deadline(time); }

  // Only for a worker that waits for work. A wait for a peer has a limit.
  static Deadline Infinite() { return Deadline(Clock::time_point::max()); }

  // Already over: the call does what it can without waiting.
  static Deadline Now() { return Deadline(Clock::time_point::min()); }

  static Deadline Earlier(Deadline a, Deadline b) { return Deadline(std::min(a.time_, b.time_)); }

  bool infinite() const { return time_ == Clock::time_point::max(); }
  bool passed() const { return !infinite() && Clock::now() >= time_; }
  bool passed(Clock::time_point now) const { return !infinite() && now >= time_; }
  Clock::time_point time() const { return time_; }

  // Whole milliseconds left, rounded up, as poll() takes them: 0 once passed, -1 when infinite.
  int remaining_ms() const {
    if (infinite()) return -1;
    const Clock::time_point now = Clock::now();
    if (time_ <= now) return 0;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(time_ - now).count();
    return static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max()));
  }

 private:
  static constexpr int64_t kMaxMs = int64_t{100} * 365 * 24 * 3600 * 1000;

  explicit Deadline(Clock::time_point time) : time_(time) {}

  Clock::time_point time_;
};

}  // namespace lockstep

#endif  // BASE_DEADLINE_H_
