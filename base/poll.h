// Waiting for what nobody signals: a device's progress, a word that a device writes.

#ifndef BASE_POLL_H_
#define BASE_POLL_H_

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/deadline.h"

namespace lockstep {

// Looks until `reached()` is true or the deadline has passed, at least once; what it said last. At first without a
// pause, since most waits are short; then with pauses that grow to 50 us, which a wait of a millisecond does not feel
// and a core hardly.
template <typename Reached>
bool PollUntil(Deadline deadline, const Reached& reached) {
  constexpr int kEager = 50;
  constexpr std::chrono::microseconds kLongestPause(50);
  std::chrono::microseconds pause(1);
  for (int looked = 1; !reached(); ++looked) {
    if (deadline.passed()) return false;
    if (looked <= kEager) {
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
