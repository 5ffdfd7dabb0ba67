// The connections of a listener that have not proved who they are.

#ifndef TRANSPORT_SECURE_HALF_OPEN_H_
#define TRANSPORT_SECURE_HALF_OPEN_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"

namespace lockstep {

// Bounds them in number and time. What there is too much of goes at the expense of the address that has the most, so that one that floods
// keeps out nobody else: its oldest goes. The IPv6 addresses of a /64 count as one, since one host may have them all. Who has begun a
// handshake well stays for a second all the same, so that those who mean it do not push out each other. Not so with the copy of a first
// flight that has come here before; and of an address that has all places with copies from elsewhere the oldest goes all the same. Belongs
// to one thread.
class HalfOpen {
 public:
  using Clock = Deadline::Clock;

  // A quarter of the descriptors that the process may have, from 4 to 1024.
  static size_t MostForThisProcess();

  HalfOpen(size_t most, std::chrono::milliseconds time) : most_(most), time_(time) {}

  // Connection `id` has come from `source`: an IP address without a port, or any other name. IDs grow.
  // RETURNS  the one to close, if there are more than `most` now
  absl::optional<uint64_t> Add(uint64_t id, const std::string& source, Clock::time_point now);

  // It has proved who it is, or was closed. True if it was half-open.
  bool Remove(uint64_t id);

  // What it has said begins well, if `first_flight` is not empty: Channel::first_flight.
  void Shows(uint64_t id, absl::string_view first_flight, Clock::time_point now);

  // The one to close where a descriptor is needed. Nothing when there is none that may be closed.
  absl::optional<uint64_t> Crowded(Clock::time_point now) const;

  // One whose time is over.
  absl::optional<uint64_t> Expired(Clock::time_point now) const;

  // When the next one's time is over; time_point::max() when there is none.
  Clock::time_point next_expiry() const {
    return connections_.empty() ? Clock::time_point::max() : connections_.front().until;
  }
  size_t size() const { return connections_.size(); }

 private:
  struct Connection {
    uint64_t id;
    std::string source;  // as it is counted
    Clock::time_point until;
    Clock::time_point stays_until;
    bool shows;
  };

  std::vector<Connection>::iterator Find(uint64_t id);

  const size_t most_;
  const std::chrono::milliseconds time_;
  std::vector<Connection> connections_;             // oldest first
  absl::flat_hash_set<std::string> first_flights_;  // that began well
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_HALF_OPEN_H_
