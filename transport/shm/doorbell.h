// Doorbell: wakes a process that sleeps when something lies in its mailboxes. It costs nothing while the process is awake.
//
// Each rank has one: a word in a page of shared memory, and an eventfd. Peers get both. The word is
// 0 while the rank polls its mailboxes anyway. Before the rank sleeps, it arms the bell with a number that it has not used
// before, checks all its mailboxes once more, and sleeps on the eventfd only if they are empty. A peer that puts something into
// a mailbox reads the word afterwards, and rings once for each number.
//
// No wake-up is lost. Putting and reading the word, and arming and checking the mailbox, are sequentially consistent: of "put,
// then read the word" and "arm, then check the mailbox" at least one sees the other. If the owner sees what was put, it does
// not sleep. If the peer sees the number, it rings, unless it rang for this number before; then the eventfd is readable until
// the owner clears it, just before it arms with another number. A peer that is stopped between reading and ringing delays only
// what it put itself: peers do not disarm for another number.
//
// Why an eventfd and not a futex: it wakes in the same time, but one poll() also covers whatever else a rank waits for: the
// death of a peer, sockets of another transport. But an eventfd costs a descriptor for each peer. So in a world that has nothing but shared
// memory the word itself is a futex once the world has formed (UseFutex): a peer rings by putting 0 there. A second word counts notices,
// so that a rank need not poll its sockets for them.

#ifndef TRANSPORT_SHM_DOORBELL_H_
#define TRANSPORT_SHM_DOORBELL_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status.h"
#include "transport/shm/shared_memory.h"
#include "transport/wakeup.h"

namespace lockstep {

// The contents of the page. Accesses are sequentially consistent.
struct DoorbellPage {
  alignas(64) std::atomic<uint32_t> armed;
  alignas(64) std::atomic<uint32_t> notices;

  void WakeSleepers() { (void)syscall(SYS_futex, &armed, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
};
static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free,
              "a futex is such a word");

// The owner's end. Externally synchronised, except armed(), Ring() and Sleep(), which any thread may call. In a forked child its calls do
// nothing.
class Doorbell {
 public:
  static constexpr size_t kPageBytes = 4096;

  static absl::StatusOr<Doorbell> Create() {
    LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory page, SharedMemory::Create(kPageBytes));
    LOCKSTEP_ASSIGN_OR_RETURN(Wakeup event, Wakeup::Create());
    return Doorbell(std::move(page), std::move(event));
  }
  Doorbell(Doorbell&& other) noexcept
      : page_(std::move(other.page_)),
        event_(std::move(other.event_)),
        fork_generation_(other.fork_generation_),
        number_(other.number_),
        armed_(other.armed_.load()),
        rung_(other.rung_.load()) {}

  int page_descriptor() const { return page_.descriptor(); }
  int event_descriptor() const { return event_.has_value() ? event_->descriptor() : -1; }

  // Gives up both descriptors.
  // REQUIRES  it is not armed; before they next ring, peers do the same
  void UseFutex() {
    page_.TakeDescriptor().reset();
    event_.reset();
  }
  bool by_futex() const { return !event_.has_value(); }
  // By futex: waits for a ring. False at the deadline.
  bool Sleep(Deadline deadline) {
    if (fork_generation_ != ForkGeneration()) return false;
    for (;;) {
      const uint32_t number = armed_.load();
      if (rung_.load() || number == 0 || page()->armed.load() != number) return true;
      const int ms = deadline.remaining_ms();
      if (ms == 0) return false;
      const timespec timeout = {ms / 1000, ms % 1000 * 1'000'000L};
      (void)syscall(SYS_futex, &page()->armed, FUTEX_WAIT, number, ms < 0 ? nullptr : &timeout, nullptr, 0);
    }
  }
  // How many notices peers have sent by their sockets.
  uint32_t notices() { return page()->notices.load(); }
  bool forked() const { return fork_generation_ != ForkGeneration(); }

  // From now on peers ring. Check the mailboxes after this call.
  void Arm() {
    if (fork_generation_ != ForkGeneration()) return;
    if (++number_ == 0) number_ = 1;
    page()->armed.store(number_);
    armed_.store(number_);
  }
  void Disarm() {
    if (fork_generation_ != ForkGeneration()) return;
    page()->armed.store(0);
    armed_.store(0);
  }
  bool armed() const { return armed_.load() != 0; }

  void Ring() {
    if (event_.has_value()) return event_->Signal();
    if (fork_generation_ != ForkGeneration()) return;
    rung_.store(true);
    page()->armed.store(0);
    page()->WakeSleepers();
  }
  // Clears the ring. Arm or Disarm follows.
  void Silence() {
    if (event_.has_value()) event_->Clear();
    rung_.store(false);
  }

 private:
  Doorbell(SharedMemory page, Wakeup event)
      : page_(std::move(page)), event_(std::move(event)), fork_generation_(ForkGeneration()) {}
  DoorbellPage* page() { return reinterpret_cast<DoorbellPage*>(page_.data()); }

  SharedMemory page_;
  absl::optional<Wakeup> event_;  // none by futex
  uint64_t fork_generation_ = 0;
  uint32_t number_ = 0;
  // The number for which the bell is armed. A copy, for threads that must not touch the page: a forked child does not have it.
  std::atomic<uint32_t> armed_{0};
  std::atomic<bool> rung_{false};  // by the owner, by futex, since the last Silence
};

// A peer's end. Externally synchronised. Movable.
class PeerDoorbell {
 public:
  PeerDoorbell() = default;
  // As SharedMemory::Attach.
  static absl::StatusOr<PeerDoorbell> Attach(UniqueFd page, UniqueFd event) {
    PeerDoorbell bell;
    LOCKSTEP_ASSIGN_OR_RETURN(bell.page_, SharedMemory::Attach(std::move(page), Doorbell::kPageBytes));
    bell.event_ = std::move(event);
    return bell;
  }

  // Call it after putting something that the owner may wait for.
  void RingIfArmed() {
    const uint32_t armed = page()->armed.load();
    if (armed != 0 && armed != rung_) Ring(armed);
  }

  // From now on the owner sleeps by futex.
  void UseFutex() { event_.reset(); }
  // After a notice was sent.
  void CountNotice() {
    page()->notices.fetch_add(1);
    RingIfArmed();
  }

 private:
  DoorbellPage* page() const { return reinterpret_cast<DoorbellPage*>(page_.data()); }
  void Ring(uint32_t armed) {
    rung_ = armed;
    if (!event_.valid()) {
      if (page()->armed.compare_exchange_strong(armed, 0)) page()->WakeSleepers();
      return;
    }
    const uint64_t one = 1;
    (void)!write(event_.get(), &one, sizeof(one));  // fails only when 2^64 - 1 rings are waiting
  }

  SharedMemory page_;
  UniqueFd event_;
  uint32_t rung_ = 0;  // the last number that was rung for
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_DOORBELL_H_
