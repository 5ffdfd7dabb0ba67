// Counts the peers that a listener rejects, logs them at a falling rate, and logs the sums when the listener ends.

#ifndef TRANSPORT_SECURE_REFUSALS_H_
#define TRANSPORT_SECURE_REFUSALS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "transport/secure/channel.h"

namespace lockstep {

// Thread-safe.
class Refusals {
 public:
  // `listener` names it in the log: "store server 10.0.0.1:4000".
  explicit Refusals(std::string listener) : listener_(std::move(listener)) {}
  // Logs what Describe returns, at level info.
  ~Refusals();
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  using Clock = std::chrono::steady_clock;
  // After a line of a kind, no line of that kind is logged for a pause. The first pause is kPauseMin, and each pause is twice as long as
  // the one before, up to kPauseMax. If no peer of the kind is rejected for kPauseMax, the pauses start again at kPauseMin.
  static constexpr std::chrono::seconds kPauseMin{1};
  static constexpr std::chrono::seconds kPauseMax{3600};

  // Counts a rejected `peer`, for example "10.0.0.9:51230". Logs a warning with the peer, the kind's text and `what`, the details. During
  // a pause nothing is logged, and the next line gives the number of lines left out. For kGaveUp and kUnfinished the line is at level
  // info, since ranks that connect to each other at the same time cause these as well. kCount means that a channel broke when it was
  // ready, and counts as kBroken.
  void Note(Refusal kind, absl::string_view peer, absl::string_view what, Clock::time_point now = Clock::now());

  uint64_t count(Refusal kind) const;
  uint64_t total() const;

  // "turned away 2 (does not have the secret), 1 (was not through with the handshake in time)", or "" when there were none.
  std::string Describe() const;

 private:
  struct Kind {
    uint64_t count = 0;
    uint64_t untold = 0;
    Clock::time_point seen_at;
    Clock::time_point told_at;
    std::chrono::seconds pause{0};  // after told_at
  };

  const std::string listener_;
  mutable Mutex mu_;
  std::array<Kind, static_cast<size_t>(Refusal::kCount)> kinds_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_REFUSALS_H_
