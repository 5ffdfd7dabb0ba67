// epoll and timers, with errors as Status.

#ifndef TRANSPORT_NET_EPOLL_H_
#define TRANSPORT_NET_EPOLL_H_

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fork.h"
#include "base/status.h"

namespace lockstep {

inline absl::StatusOr<UniqueFd> NewEpoll() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create1");
  return epoll;
}

inline absl::StatusOr<UniqueFd> NewTimer() {
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer.valid()) return ErrnoStatus(errno, "timerfd_create");
  return timer;
}

// epoll_ctl. `data` comes back with the events, as event.data.u64.
inline absl::Status EpollControl(int epoll, int operation, int descriptor, uint32_t events, uint64_t data) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = data;
  if (epoll_ctl(epoll, operation, descriptor, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "epoll_ctl");
}

// The same with a pointer, as event.data.ptr.
inline absl::Status EpollControl(int epoll, int operation, int descriptor, uint32_t events, void* data) {
  return EpollControl(epoll, operation, descriptor, events, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data)));
}

}  // namespace lockstep

#endif  // TRANSPORT_NET_EPOLL_H_
