// Sleepers: lets any thread wait for a transport whose events all show on one descriptor.
//
// A transport's work is an event that is still in the descriptor, or work announced by TellWorkLeft. A sleeper counts itself,
// then checks whether work is left, and otherwise sleeps on the descriptor. A thread that leaves work announces it, then checks
// for sleepers and wakes them. Both are sequentially consistent, so one of them sees the other.

#ifndef TRANSPORT_SLEEPERS_H_
#define TRANSPORT_SLEEPERS_H_

#include <poll.h>

#include <atomic>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/wakeup.h"

namespace lockstep {

class Sleepers {
 public:
  // Borrows the descriptor of the events.
  Sleepers(Wakeup wakeup, int events) : wakeup_(std::move(wakeup)), events_(events) {}

  // ---- For the thread that drives the transport.

  void TellWorkLeft(bool left) {
    // Relaxed: only this thread writes it.
    if (left != work_left_.load(std::memory_order_relaxed)) work_left_.store(left);
    if (left && any()) Wake();
  }
  bool any() const { return count_.load() > 0; }
  // Whether events have woken a sleeper since ForgetEvents. Only a hint, and relaxed: if it is lost, the descriptor of the events stays
  // readable, and the next sleeper sets it again.
  bool events_seen() const { return events_seen_.load(std::memory_order_relaxed); }
  void ForgetEvents() { events_seen_.store(false, std::memory_order_relaxed); }

  // ---- For any thread.

  void Wake() { wakeup_.Signal(); }

  // The parts of PollableTransport's waits. Begin is false when there is work.
  void AppendDescriptors(std::vector<pollfd>* descriptors) const {
    descriptors->push_back({events_, POLLIN, 0});
    descriptors->push_back({wakeup_.descriptor(), POLLIN, 0});
  }
  bool Begin() {
    count_.fetch_add(1);
    return !work_left_.load();
  }
  void End(bool event) {
    if (event) events_seen_.store(true, std::memory_order_relaxed);
    // The last sleeper clears the wake-up, so that it ends every wait under way. If another wait has begun since, the wake-up
    // may be meant for that one: signal it again.
    if (count_.fetch_sub(1) != 1) return;
    wakeup_.Clear();
    if (any()) wakeup_.Signal();
  }
  // Between the two, until there is an event, a wake-up, or the deadline. True for an event.
  bool Sleep(Deadline deadline) const {
    pollfd descriptors[2] = {{events_, POLLIN, 0}, {wakeup_.descriptor(), POLLIN, 0}};
    (void)poll(descriptors, 2, deadline.remaining_ms());
    return descriptors[0].revents != 0;
  }

 private:
  const Wakeup wakeup_;
  const int events_;
  std::atomic<bool> work_left_{false};
  std::atomic<int> count_{0};
  std::atomic<bool> events_seen_{false};
};

}  // namespace lockstep

#endif  // TRANSPORT_SLEEPERS_H_
