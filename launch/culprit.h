// The rank that failed first, found by following the blame.
//
// A failure reaches the other ranks within milliseconds, and they may end sooner than the rank that caused it. So the order in which
// processes end does not say which failed first.

#ifndef LAUNCH_CULPRIT_H_
#define LAUNCH_CULPRIT_H_

#include <cstdint>

#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace lockstep {

// The facts about a rank. Plain data.
struct RankOutcome {
  bool ended = false;
  bool failed = false;     // it ended by itself, but not with status 0, or it reported an exception
  bool by_signal = false;  // a signal ended it that the launcher did not send
  int64_t time_ns = 0;     // when it reported, else when the launcher noticed its end
  absl::optional<int> blames;
};

// Follows the blame of each failed rank to a rank that blames no other, which may still run. A rank that ended with status 0 takes no
// blame. In a circle of blame the earliest rank counts. Of several such ranks, prefers one that died by a signal, then the one to
// which the blame of more ranks leads, then the earliest.
//
// RETURNS  nullopt if no rank has failed. Pure
absl::optional<int> FindCulprit(absl::Span<const RankOutcome> ranks);

}  // namespace lockstep

#endif  // LAUNCH_CULPRIT_H_
