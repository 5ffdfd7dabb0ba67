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
#include "base/fork.h"

namespace lockstep {

// Bounds the half-open connections of a listener in number and time. If there are too many, it evicts the oldest one of the address that
// has the most, so that one that floods this listener keeps out nobody else; the addresses of an IPv6 /64 count as one, since one host may
// have them all. A connection whose first flight was made with the secret has begun well: it is not evicted for a second, so that peers of
// ours do not evict each other. That does not hold for a first flight that this listener has seen before; and if one address holds all
// places in that way, its oldest is evicted all the same. Belongs to one thread.
class HalfOpen {
 public:
  using Clock = Deadline::Clock;
  // kProcess: all listeners of the process that have it are bounded together, too. Where their connections that have not begun well are
  // more than four times what one may have, whichever has more than 4 of them takes another only in place of one of its own.
  enum class Bound { kListener, kProcess };

  // For each listener of the process: a sixteenth of the descriptors that it may have, from 4 to 1024.
  static size_t MostForThisProcess();

  // At most `most` that have not begun well, and `most` and `more_begun_well` in all.
  HalfOpen(Bound bound, size_t most, size_t more_begun_well, std::chrono::milliseconds time)
      : bound_(bound), most_(most), more_begun_well_(more_begun_well), time_(time) {}
  ~HalfOpen();
  HalfOpen(const HalfOpen&) = delete;
  HalfOpen& operator=(const HalfOpen&) = delete;

  // Connection `id` has come from `source`: an IP address without a port, or any other name. IDs grow.
  // RETURNS  the one to evict, if there are too many now
  absl::optional<uint64_t> Add(uint64_t id, const std::string& source, Clock::time_point now);

  // It has proved who it is, or was closed. True if it was half-open.
  bool Remove(uint64_t id);

  // Its first flight was made with the secret, if `first_flight` is not empty: Channel::first_flight.
  void BegunWell(uint64_t id, absl::string_view first_flight, Clock::time_point now);

  // The one to evict where a descriptor is needed. Nothing when there is none that may be.
  absl::optional<uint64_t> ToEvict(Clock::time_point now) const;

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
    bool begun_well;
  };

  std::vector<Connection>::iterator Find(uint64_t id);
  void SetNotBegunWell(size_t count);
  bool TooManyHaveNotBegunWell() const;
  // The oldest of the address that has the most of those that satisfy the condition.
  template <typename Condition>
  absl::optional<uint64_t> OldestOfTheFullest(Condition condition) const;

  const Bound bound_;
  const size_t most_;
  const size_t more_begun_well_;
  const std::chrono::milliseconds time_;
  const size_t most_in_process_ = 4 * MostForThisProcess();
  const uint64_t fork_generation_ = ForkGeneration();
  std::vector<Connection> connections_;             // oldest first
  size_t not_begun_well_ = 0;                       // of them
  absl::flat_hash_set<std::string> first_flights_;  // that began well
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_HALF_OPEN_H_
