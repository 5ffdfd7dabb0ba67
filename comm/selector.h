// Selector: which algorithm carries out a collective. Pure: equal arguments give equal answers on every rank and in
// every run. The costs are built in for each class of link, never measured behind anyone's back.

#ifndef COMM_SELECTOR_H_
#define COMM_SELECTOR_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/schedule.h"

namespace lockstep {

// What a link costs: latency for each message, then nanoseconds for each byte moved and for each byte reduced.
struct LinkCosts {
  double message_ns = 0;
  double moved_byte_ns = 0;
  double reduced_byte_ns = 0;
  // How far a chain of ranks passes on what it receives before all of it has arrived.
  int64_t chunk_bytes = 1;
};

// TCP between processes that may sleep: a message costs the wake-up of its receiver rather than the wire. The rates are
// those of a core that is copying through the kernel in both directions, and that reduces from its caches.
inline constexpr LinkCosts kTcpCosts = {/*message_ns=*/15'000, /*moved_byte_ns=*/0.3, /*reduced_byte_ns=*/0.08,
                                        /*chunk_bytes=*/128 << 10};

// What LOCKSTEP_ALGORITHM or an option has fixed; kAuto where nothing.
struct AlgorithmOverrides {
  std::array<Algorithm, kCollectiveCount> by_collective = {};

  friend bool operator==(const AlgorithmOverrides& a, const AlgorithmOverrides& b) {
    return a.by_collective == b.by_collective;
  }
};

// Text:
//   overrides  = "" | algorithm | entry { ";" entry }
//   entry      = collective ":" algorithm
// An algorithm alone is for every collective that it can carry out. Spaces around words do not count. INVALID_ARGUMENT
// for unknown names (listing the known ones), for an algorithm that cannot carry out its collective, and for a
// collective named twice.
absl::StatusOr<AlgorithmOverrides> ParseAlgorithmOverrides(absl::string_view text);

// In the grammar above, by collective; "" when nothing is overridden. Equal overrides give equal texts.
std::string ToString(const AlgorithmOverrides& overrides);

// The estimated time in nanoseconds. `bytes` is the size of the whole vector: what all-reduce, broadcast and reduce
// move, what all-gather makes, what reduce-scatter starts from. The algorithm must carry out the collective.
double EstimateNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const LinkCosts& costs);

// The override if there is one, else the cheapest; of equals, the first in AlgorithmsFor().
Algorithm Select(Collective collective, int size, int64_t bytes, const AlgorithmOverrides& overrides = {},
                 const LinkCosts& costs = kTcpCosts);

}  // namespace lockstep

#endif  // COMM_SELECTOR_H_
