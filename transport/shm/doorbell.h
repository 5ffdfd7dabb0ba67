// Doorbell: wakes a process that sleeps when something lies in its mailboxes. It costs nothing while the process is awake.
//
// Each rank has one: a word in a page of shared memory that only the rank writes, and an eventfd. Peers get both. The word is
// 0 while the rank polls its mailboxes anyway. Before the rank sleeps, it arms the bell with a number that it has not used
// before, checks all its mailboxes once more, and sleeps on the eventfd only if they are empty. A peer that puts something into
// a mailbox reads the word afterwards, and rings once for each number.
//
// No wake-up is lost. Putting and reading the word, and arming and checking the mailbox, are sequentially consistent: of "put,
// then read the word" and "arm, then check the mailbox" at least one sees the other. If the owner sees what was put, it does
// not sleep. If the peer sees the number, it rings, unless it rang for this number before; then the eventfd is readable until
// the owner clears it, just before it arms with another number. A peer that is stopped between reading and ringing delays only
// what it put itself: peers do not disarm.
//
// Why an eventfd and not a futex: it wakes in the same time, but one poll() also covers whatever else a rank waits for: the
// death of a peer, sockets of another transport, its own Wake(). A futex wait would need a timeout for each of them.

#ifndef TRANSPORT_SHM_DOORBELL_H_
#define TRANSPORT_SHM_DOORBELL_H_

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/fork.h"
#include "base/status.h"
#include "transport/shm/shared_memory.h"
#include "transport/wakeup.h"

namespace lockstep {

// The owner's end. Externally synchronised, but for armed() and Ring(), which any thread may call. Of no use, and
// harmless, in a forked child.
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
        armed_(other.armed_.load()) {}

  int page_descriptor() const { return page_.descriptor(); }
  int event_descriptor() const { return event_.descriptor(); }

  // From now on peers ring. Check the mailboxes after this call.
  void Arm() {
    if (fork_generation_ != ForkGeneration()) return;
    if (++number_ == 0) number_ = 1;
    word()->store(number_);
    armed_.store(true);
  }
  void Disarm() {
    if (fork_generation_ != ForkGeneration()) return;
    word()->store(0);
    armed_.store(false);
  }
  bool armed() const { return armed_.load(); }

  void Ring() { event_.Signal(); }
  // Clears the ring. Arm or Disarm follows.
  void Silence() { event_.Clear(); }

 private:
  Doorbell(SharedMemory page, Wakeup event)
      : page_(std::move(page)), event_(std::move(event)), fork_generation_(ForkGeneration()) {}
  std::atomic<uint32_t>* word() { return reinterpret_cast<std::atomic<uint32_t>*>(page_.data()); }

  SharedMemory page_;
  Wakeup event_;
  uint64_t fork_generation_ = 0;
  uint32_t number_ = 0;
  // Whether the word is set, for threads that must not touch what a forked child does not have.
  std::atomic<bool> armed_{false};
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
    const uint32_t armed = reinterpret_cast<const std::atomic<uint32_t>*>(page_.data())->load();
    if (armed != 0 && armed != rung_) Ring(armed);
  }

 private:
  void Ring(uint32_t armed) {
    rung_ = armed;
    const uint64_t one = 1;
    (void)!write(event_.get(), &one, sizeof(one));  // fails only when 2^64 - 1 rings are waiting
  }

  SharedMemory page_;
  UniqueFd event_;
  uint32_t rung_ = 0;  // the last number that was rung for
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_DOORBELL_H_
