// Selector: which algorithm executes a collective. Pure: equal arguments give equal answers on every rank and in
// every run. It takes the cheapest by comm/select/cost_model.h on a described network (comm/topology/link_costs.h). The network's
// numbers are built in for each class of link; they are measured only on request.

#ifndef COMM_SELECT_SELECTOR_H_
#define COMM_SELECT_SELECTOR_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"
#include "comm/select/cost_model.h"
#include "comm/topology/link_costs.h"

namespace lockstep {

// The algorithms that LOCKSTEP_ALGORITHM or an option fixes. kAuto: none for this collective.
struct AlgorithmOverrides {
  std::array<Algorithm, kCollectiveCount> by_collective = {};

  friend bool operator==(const AlgorithmOverrides& a, const AlgorithmOverrides& b) {
    return a.by_collective == b.by_collective;
  }
};

// Text:
//   overrides  = "" | algorithm | entry { ";" entry }
//   entry      = collective ":" algorithm
// An algorithm alone applies to every collective that it can execute. Spaces around words are ignored. INVALID_ARGUMENT
// for unknown names (listing the known ones), for an algorithm that cannot execute its collective, and for a
// collective named twice.
absl::StatusOr<AlgorithmOverrides> ParseAlgorithmOverrides(absl::string_view text);

// In the grammar above, by collective; "" when nothing is overridden. Equal overrides give equal texts.
std::string ToString(const AlgorithmOverrides& overrides);

// The cheapest candidate. Of those within 1 % of it, the first. `bytes` as for CostModel::Ns().
// REQUIRES  at least one candidate; all can execute the collective
Algorithm Cheapest(absl::Span<const Algorithm> candidates, Collective collective, int64_t bytes, CostModel* costs);

// The override if there is one, else the cheapest of ChoicesFor(). On one host these include the shared-memory algorithms.
Algorithm Select(Collective collective, int size, int64_t bytes, const AlgorithmOverrides& overrides = {},
                 const Network& network = kTcpNetwork);

}  // namespace lockstep

#endif  // COMM_SELECT_SELECTOR_H_
