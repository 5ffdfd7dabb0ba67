// Waits, by polling, for what nobody signals: a device's progress, a flag that a device writes.

#ifndef BASE_POLL_H_
#define BASE_POLL_H_

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/deadline.h"

namespace lockstep {

// Calls `reached()`, at least once, until it is true or the deadline has passed. Returns its last answer. The first polls come
// without a pause, since most waits are short. Then the pauses grow to 50 us, little for a wait of a millisecond, and little
// load on a core.
template <typename Reached>
bool PollUntil(Deadline deadline, const Reached& reached) {
  constexpr int kEager = 50;
  constexpr std::chrono::microseconds kLongestPause(50);
  std::chrono::microseconds pause(1);
  for (int polls = 1; !reached(); ++polls) {
    if (deadline.passed()) return false;
    if (polls <= kEager) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

}  // namespace lockstep

#endif  // BASE_POLL_H_
