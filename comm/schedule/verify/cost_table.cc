#include "comm/schedule/verify/cost_table.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "comm/schedule/verify/simulator.h"
#include "comm/select/cost_model.h"
#include "comm/select/selector.h"

namespace lockstep {
namespace {

// Beyond this, the schedules of quadratic algorithms alone take gigabytes.
constexpr int kSimulatedRanksMax = 1024;
constexpr int kRanksMax = 1 << 20;

std::string SizeText(int64_t bytes) {
  constexpr struct {
    int shift;
    const char* name;
  } kUnits[] = {{30, "GiB"}, {20, "MiB"}, {10, "KiB"}};
  for (const auto& unit : kUnits) {
    if (bytes >= int64_t{1} << unit.shift && bytes % (int64_t{1} << unit.shift) == 0) {
      return absl::StrCat(bytes >> unit.shift, " ", unit.name);
    }
  }
  return absl::StrCat(bytes, " B");
}

absl::StatusOr<double> Microseconds(const CostTableOptions& options, Collective collective, Algorithm algorithm,
                                    int64_t bytes, CostModel* costs) {
  const double cost = costs->Ns(collective, algorithm, bytes);
  if (!options.step_by_step || std::isinf(cost)) return cost / 1000;
  LOCKSTEP_ASSIGN_OR_RETURN(const Simulation simulation,
                            Simulate(collective, algorithm, options.ranks, bytes, options.network));
  return simulation.ns / 1000;
}

absl::StatusOr<std::string> FormatCostTable(const CostTableOptions& options, Collective collective) {
  const int ranks = options.ranks, ranks_per_host = std::min(ranks, options.network.ranks_per_host);
  const int hosts = options.network.HostOf(ranks - 1) + 1;
  std::string text = absl::StrCat(Name(collective), ", ", ranks, " rank", ranks == 1 ? "" : "s", ", ");
  absl::StrAppend(&text, ranks % hosts == 0 ? "" : "up to ", ranks_per_host, " on ");
  absl::StrAppend(&text, hosts == 1 ? "one host" : absl::StrCat("each of ", hosts, " hosts"), ", us\n");
  // A barrier moves nothing, whatever the size.
  const std::vector<int64_t> sizes = collective == Collective::kBarrier ? std::vector<int64_t>{0} : options.sizes;
  absl::StrAppendFormat(&text, "%-20s", "algorithm");
  for (int64_t bytes : sizes) absl::StrAppendFormat(&text, " %12s ", SizeText(bytes));
  CostModel costs(ranks, options.network);
  Algorithms all, for_shared, for_ordinary;
  for (Algorithm algorithm : AlgorithmsFor(collective)) {
    if (UsesSharedMemory(algorithm) && (!options.share_memory || hosts > 1)) continue;
    all.push_back(algorithm);
    if (Has(algorithm, algorithms::kOnlyByName)) continue;
    for_shared.push_back(algorithm);
    if (!Has(algorithm, algorithms::kDirect)) for_ordinary.push_back(algorithm);
  }
  for (Algorithm algorithm : all) {
    absl::StrAppendFormat(&text, "\n%-20s", Name(algorithm));
    for (int64_t bytes : sizes) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double us, Microseconds(options, collective, algorithm, bytes, &costs));
      const auto is_chosen_of = [&](const Algorithms& algorithms) {
        return Cheapest(algorithms, collective, bytes, &costs) == algorithm;
      };
      const char mark = is_chosen_of(for_ordinary) ? '*' : is_chosen_of(for_shared) ? '+' : ' ';
      absl::StrAppendFormat(&text, " %12s%c", std::isinf(us) ? "-" : absl::StrFormat("%.1f", us), mark);
    }
  }
  text.push_back('\n');
  return text;
}

// A number that is followed by one of the units, and what the unit multiplies it by.
struct Unit {
  absl::string_view name;
  double factor;
};
absl::StatusOr<double> ParseQuantity(absl::string_view text, absl::string_view what,
                                     std::initializer_list<Unit> units) {
  const std::string trimmed = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
  const size_t digits = std::min(trimmed.find_first_not_of("0123456789."), trimmed.size());
  double number = 0;
  if (absl::SimpleAtod(absl::string_view(trimmed).substr(0, digits), &number) && std::isfinite(number)) {
    for (const Unit& unit : units) {
      if (unit.name == absl::string_view(trimmed).substr(digits)) return number * unit.factor;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is no ", what, ": a number followed by ",
      absl::StrJoin(units, ", ", [](std::string* out, const Unit& unit) { absl::StrAppend(out, unit.name); })));
}

}  // namespace

absl::StatusOr<std::string> FormatCostTables(const CostTableOptions& options) {
  if (options.ranks < 1 || options.ranks > kRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.ranks, " ranks: from 1 to ", kRanksMax, " can have a cost"));
  }
  if (options.step_by_step && options.ranks > kSimulatedRanksMax) {
    return absl::InvalidArgumentError(absl::StrCat(options.ranks, " ranks: up to ", kSimulatedRanksMax,
                                                   " can be simulated step by step; the cost model has no limit"));
  }
  for (int64_t bytes : options.sizes) {
    if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("a vector of ", bytes, " bytes"));
  }
  std::vector<std::string> tables;
  for (Collective collective : options.collectives) {
    LOCKSTEP_ASSIGN_OR_RETURN(tables.emplace_back(), FormatCostTable(options, collective));
  }
  return absl::StrJoin(tables, "\n");
}

absl::StatusOr<std::vector<Collective>> ParseCollectiveList(absl::string_view text) {
  std::vector<Collective> known;
  for (int index = 0; index < kCollectiveCount; ++index) known.push_back(static_cast<Collective>(index));
  if (text == "all") return known;
  std::vector<Collective> found;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    const auto it = std::find_if(known.begin(), known.end(), [&](Collective collective) {
      return Name(collective) == absl::StripAsciiWhitespace(word);
    });
    if (it == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no collective '", word, "'; known are all, ",
          absl::StrJoin(known, ", ", [](std::string* out, Collective collective) { out->append(Name(collective)); })));
    }
    found.push_back(*it);
  }
  return found;
}

absl::StatusOr<std::vector<int64_t>> ParseSizeList(absl::string_view text) {
  std::vector<int64_t> sizes;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    LOCKSTEP_ASSIGN_OR_RETURN(
        const double bytes,
        ParseQuantity(word, "size in bytes", {{"", 1}, {"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}}));
    // Beyond 2^50 nobody has a vector, and below it every whole number is exact.
    if (bytes != std::floor(bytes) || bytes > 0x1p50) {
      return absl::InvalidArgumentError(absl::StrCat("'", word, "' is no whole number of bytes up to 2^50"));
    }
    sizes.push_back(static_cast<int64_t>(bytes));
  }
  return sizes;
}

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  LOCKSTEP_ASSIGN_OR_RETURN(const double bits_per_ns,
                            ParseQuantity(text, "bandwidth", {{"kbit", 1e-6}, {"mbit", 1e-3}, {"gbit", 1}}));
  if (bits_per_ns <= 0) return absl::InvalidArgumentError(absl::StrCat("'", text, "' moves nothing"));
  return 8 / bits_per_ns;
}

absl::StatusOr<double> ParseLatency(absl::string_view text) {
  return ParseQuantity(text, "latency", {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}});
}

absl::StatusOr<LinkCosts> ParseLocalLink(absl::string_view text) {
  constexpr struct {
    const char* name;
    LinkCosts costs;
  } kLocalLinks[] = {{"tcp", kTcpOnOneHost},
                     {"libfabric", kLibfabricOnOneHost},
                     {"shared_memory", kSharedMemory},
                     {"loopback", kLoopback}};
  std::string known;
  for (const auto& link : kLocalLinks) {
    if (text == link.name) return link.costs;
    absl::StrAppend(&known, known.empty() ? "" : ", ", link.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("no link class '", text, "' inside a host; known are ", known));
}

}  // namespace lockstep
