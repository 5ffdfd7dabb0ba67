#include "comm/select/selector.h"

#include <algorithm>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clipped.h"
#include "base/status.h"
#include "comm/select/cost_model.h"

namespace lockstep {
namespace {

bool CarriesOut(Algorithm algorithm, Collective collective) {
  const Algorithms known = AlgorithmsFor(collective);
  return std::find(known.begin(), known.end(), algorithm) != known.end();
}

absl::StatusOr<Collective> ParseCollective(absl::string_view name) {
  std::vector<std::string> known;
  for (int index = 0; index < kCollectiveCount; ++index) {
    known.push_back(Name(static_cast<Collective>(index)));
    if (name == known.back()) return static_cast<Collective>(index);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown collective '", Clipped(name), "'; known are ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<AlgorithmOverrides> ParseForAll(absl::string_view name) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Algorithm algorithm, ParseAlgorithm(name));
  AlgorithmOverrides overrides;
  for (int index = 0; index < kCollectiveCount; ++index) {
    if (CarriesOut(algorithm, static_cast<Collective>(index))) overrides.by_collective[index] = algorithm;
  }
  return overrides;
}

absl::StatusOr<AlgorithmOverrides> Parse(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  AlgorithmOverrides overrides;
  if (text.empty()) return overrides;
  if (text.find_first_of(":;") == absl::string_view::npos) return ParseForAll(text);
  std::array<bool, kCollectiveCount> named = {};
  for (absl::string_view entry : absl::StrSplit(text, ';')) {
    const std::vector<absl::string_view> words = absl::StrSplit(entry, ':');
    if (words.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", Clipped(entry), "' is not collective:algorithm (an algorithm alone has no others beside it)"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Collective collective, ParseCollective(absl::StripAsciiWhitespace(words[0])));
    LOCKSTEP_ASSIGN_OR_RETURN(const Algorithm algorithm, ParseAlgorithm(absl::StripAsciiWhitespace(words[1])));
    const int index = static_cast<int>(collective);
    if (named[index]) return absl::InvalidArgumentError(absl::StrCat(Name(collective), " is named twice"));
    named[index] = true;
    LOCKSTEP_RETURN_IF_ERROR(CheckAlgorithm(collective, algorithm));
    overrides.by_collective[index] = algorithm;
  }
  return overrides;
}

}  // namespace

absl::StatusOr<AlgorithmOverrides> ParseAlgorithmOverrides(absl::string_view text) {
  absl::StatusOr<AlgorithmOverrides> overrides = Parse(text);
  if (!overrides.ok()) return Annotate(overrides.status(), absl::StrCat("algorithm overrides '", Clipped(text), "'"));
  return overrides;
}

std::string ToString(const AlgorithmOverrides& overrides) {
  std::vector<std::string> entries;
  for (int index = 0; index < kCollectiveCount; ++index) {
    const Algorithm algorithm = overrides.by_collective[index];
    if (algorithm == Algorithm::kAuto) continue;
    entries.push_back(absl::StrCat(Name(static_cast<Collective>(index)), ":", Name(algorithm)));
  }
  return absl::StrJoin(entries, ";");
}

Algorithm Cheapest(absl::Span<const Algorithm> candidates, Collective collective, int64_t bytes, CostModel* costs) {
  // What no cost is exact to: two that move the same bytes do not take turns as the vector grows.
  constexpr double kAsLittle = 1.01;
  if (candidates.size() == 1) return candidates.front();
  absl::InlinedVector<double, kAlgorithmCount> ns;
  for (Algorithm algorithm : candidates) ns.push_back(costs->Ns(collective, algorithm, bytes));
  const double cheapest = *std::min_element(ns.begin(), ns.end());
  size_t chosen = 0;
  while (ns[chosen] > cheapest * kAsLittle) ++chosen;
  return candidates[chosen];
}

Algorithm Select(Collective collective, int size, int64_t bytes, const AlgorithmOverrides& overrides,
                 const Network& network) {
  const Algorithm fixed = overrides.by_collective[static_cast<int>(collective)];
  if (fixed != Algorithm::kAuto) return fixed;
  CostModel costs(size, network);
  return Cheapest(ChoicesFor(collective), collective, bytes, &costs);
}

}  // namespace lockstep
