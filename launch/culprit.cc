#include "launch/culprit.h"

#include <tuple>
#include <vector>

namespace lockstep {
namespace {

// Where the blame of `rank` leads.
int RootOf(absl::Span<const RankOutcome> ranks, int rank) {
  std::vector<bool> seen(ranks.size());
  const auto next = [&ranks](int of) {
    const absl::optional<int> blamed = ranks[of].blames;
    const bool known = blamed.has_value() && *blamed >= 0 && *blamed < static_cast<int>(ranks.size());
    return known && (!ranks[*blamed].ended || ranks[*blamed].failed) ? *blamed : of;
  };
  while (!seen[rank] && next(rank) != rank) {
    seen[rank] = true;
    rank = next(rank);
  }
  if (next(rank) == rank) return rank;
  int earliest = rank;
  for (int other = next(rank); other != rank; other = next(other)) {
    if (ranks[other].time_ns < ranks[earliest].time_ns) earliest = other;
  }
  return earliest;
}

}  // namespace

absl::optional<int> FindCulprit(absl::Span<const RankOutcome> ranks) {
  std::vector<int> blamed_by(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].failed) ++blamed_by[RootOf(ranks, rank)];
  }
  absl::optional<int> found;
  const auto order = [&](int rank) {
    return std::make_tuple(!ranks[rank].by_signal, -blamed_by[rank], ranks[rank].time_ns);
  };
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (blamed_by[rank] > 0 && (!found.has_value() || order(rank) < order(*found))) found = rank;
  }
  return found;
}

}  // namespace lockstep
