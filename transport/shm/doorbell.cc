#include "transport/shm/doorbell.h"

#include <unistd.h>

#include <utility>

#include "base/status.h"

namespace lockstep {

absl::StatusOr<Doorbell> Doorbell::Create() {
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMemory page, SharedMemory::Create(kPageBytes));
  LOCKSTEP_ASSIGN_OR_RETURN(Wakeup event, Wakeup::Create());
  return Doorbell(std::move(page), std::move(event));
}

Doorbell::Doorbell(SharedMemory page, Wakeup event)
    : page_(std::move(page)), event_(std::move(event)), fork_generation_(ForkGeneration()) {}

Doorbell::Doorbell(Doorbell&& other) noexcept
    : page_(std::move(other.page_)),
      event_(std::move(other.event_)),
      fork_generation_(other.fork_generation_),
      number_(other.number_),
      armed_(other.armed_.load()) {}

void Doorbell::Arm() {
  if (fork_generation_ != ForkGeneration()) return;
  if (++number_ == 0) number_ = 1;
  word()->store(number_);
  armed_.store(true);
}

void Doorbell::Disarm() {
  if (fork_generation_ != ForkGeneration()) return;
  word()->store(0);
  armed_.store(false);
}

absl::StatusOr<PeerDoorbell> PeerDoorbell::Attach(UniqueFd page, UniqueFd event) {
  PeerDoorbell bell;
  LOCKSTEP_ASSIGN_OR_RETURN(bell.page_, SharedMemory::Attach(std::move(page), Doorbell::kPageBytes));
  bell.event_ = std::move(event);
  return bell;
}

void PeerDoorbell::Ring(uint32_t armed) {
  rung_ = armed;
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));  // fails only when 2^64 - 1 rings are waiting
}

}  // namespace lockstep
