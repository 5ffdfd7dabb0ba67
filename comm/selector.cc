#include "comm/selector.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

bool CarriesOut(Algorithm algorithm, Collective collective) {
  const Algorithms known = AlgorithmsFor(collective);
  return std::find(known.begin(), known.end(), algorithm) != known.end();
}

std::string KnownAlgorithms(Collective collective) {
  return absl::StrJoin(AlgorithmsFor(collective), ", ",
                       [](std::string* out, Algorithm algorithm) { out->append(Name(algorithm)); });
}

absl::StatusOr<Collective> ParseCollective(absl::string_view name) {
  std::vector<std::string> known;
  for (int index = 0; index < kCollectiveCount; ++index) {
    known.push_back(Name(static_cast<Collective>(index)));
    if (name == known.back()) return static_cast<Collective>(index);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown collective '", name, "'; known are ", absl::StrJoin(known, ", ")));
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
      return absl::InvalidArgumentError(
          absl::StrCat("'", entry, "' is not collective:algorithm (an algorithm alone has no others beside it)"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Collective collective, ParseCollective(absl::StripAsciiWhitespace(words[0])));
    LOCKSTEP_ASSIGN_OR_RETURN(const Algorithm algorithm, ParseAlgorithm(absl::StripAsciiWhitespace(words[1])));
    const int index = static_cast<int>(collective);
    if (named[index]) return absl::InvalidArgumentError(absl::StrCat(Name(collective), " is named twice"));
    named[index] = true;
    if (algorithm != Algorithm::kAuto && !CarriesOut(algorithm, collective)) {
      return absl::InvalidArgumentError(absl::StrCat(Name(algorithm), " does not carry out ", Name(collective), "; ",
                                                     KnownAlgorithms(collective), " does"));
    }
    overrides.by_collective[index] = algorithm;
  }
  return overrides;
}

int FloorLog2(int size) { return 31 - __builtin_clz(static_cast<unsigned>(size)); }
int CeilLog2(int size) { return size == 1 ? 0 : FloorLog2(size - 1) + 1; }

// What happens one after the other. Kept apart from the rates, so that algorithms that do the same cost exactly the
// same.
struct Path {
  double messages = 0;
  double moved_bytes = 0;
  double reduced_bytes = 0;  // if the collective reduces
};

Path CriticalPath(Collective collective, Algorithm algorithm, int size, double bytes, const LinkCosts& costs) {
  switch (algorithm) {
    case Algorithm::kRing: {
      if (collective == Collective::kReduce) {
        // A chain: all links carry the vector at once, but for the first chunk's way down.
        const double chunk = std::min(bytes, static_cast<double>(costs.chunk_bytes));
        const double passed = bytes + (size - 2) * chunk;
        return {size - 1.0, passed, passed};
      }
      const double turns = collective == Collective::kAllReduce ? 2 : 1;
      const double turn_bytes = bytes * (size - 1) / size;
      return {turns * (size - 1), turns * turn_bytes, turn_bytes};
    }
    case Algorithm::kRecursiveDoubling: {
      const int rounds = FloorLog2(size);
      const int folds = (1 << rounds) == size ? 0 : 1;  // into the core, and the result back out of it
      const double messages = rounds + 2 * folds;
      return {messages, messages * bytes, (rounds + folds) * bytes};
    }
    case Algorithm::kBinomial: {
      const double rounds = CeilLog2(size);
      return {rounds, rounds * bytes, rounds * bytes};
    }
    case Algorithm::kDissemination:
      return {static_cast<double>(CeilLog2(size)), 0, 0};
    case Algorithm::kAuto:
      break;
  }
  LOCKSTEP_CHECK(false) << Name(algorithm) << " has no price";
  return {};
}

}  // namespace

absl::StatusOr<AlgorithmOverrides> ParseAlgorithmOverrides(absl::string_view text) {
  absl::StatusOr<AlgorithmOverrides> overrides = Parse(text);
  if (!overrides.ok()) return Annotate(overrides.status(), absl::StrCat("algorithm overrides '", text, "'"));
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

double EstimateNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const LinkCosts& costs) {
  LOCKSTEP_CHECK(CarriesOut(algorithm, collective)) << Name(algorithm) << " does not carry out " << Name(collective);
  LOCKSTEP_CHECK(size >= 1 && bytes >= 0) << size << " ranks, " << bytes << " bytes";
  if (size == 1) return 0;
  const Path path = CriticalPath(collective, algorithm, size, static_cast<double>(bytes), costs);
  const double reduced_bytes = HasReduction(collective) ? path.reduced_bytes : 0;
  return path.messages * costs.message_ns + path.moved_bytes * costs.moved_byte_ns +
         reduced_bytes * costs.reduced_byte_ns;
}

Algorithm Select(Collective collective, int size, int64_t bytes, const AlgorithmOverrides& overrides,
                 const LinkCosts& costs) {
  const Algorithm fixed = overrides.by_collective[static_cast<int>(collective)];
  if (fixed != Algorithm::kAuto) return fixed;
  Algorithm cheapest = Algorithm::kAuto;
  double cheapest_ns = 0;
  for (Algorithm algorithm : AlgorithmsFor(collective)) {
    const double ns = EstimateNs(collective, algorithm, size, bytes, costs);
    if (cheapest != Algorithm::kAuto && ns >= cheapest_ns) continue;
    cheapest = algorithm;
    cheapest_ns = ns;
  }
  return cheapest;
}

}  // namespace lockstep
