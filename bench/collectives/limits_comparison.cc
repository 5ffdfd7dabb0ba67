#include "bench/collectives/limits_comparison.h"

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/collectives/pattern.h"
#include "bench/limits/link.h"

namespace lockstep {
namespace bench {
namespace {

// Above this a ping-pong tells nothing that the exchange does not.
constexpr int64_t kOneWayBytesMax = 64 << 10;

// What is compared: Lockstep, a bare exchange both ways at once, and a message one way, half of a ping-pong.
enum Implementation { kLockstep = 0, kBothWays = 1, kOneWay = 2 };

const Table& LimitsTable() {
  static const Table* const table = new Table({{12, "size", "(B)"},
                                               {12, "lockstep", "(us)"},
                                               {12, "both ways", "(us)"},
                                               {7, "ratio", ""},
                                               {13, "quartiles", ""},
                                               {12, "one way", "(us)"},
                                               {7, "ratio", ""},
                                               {13, "quartiles", ""}});
  return *table;
}

// The times of the rounds, by implementation; none for one way of large sizes.
using Rounds = std::array<std::vector<double>, 3>;

absl::StatusOr<Rounds> Compare(const ProcessGroup& group, const LimitsOptions& options, int64_t bytes, Case* lockstep,
                               BareLink* link, Memory* memory) {
  const auto calls_of = [&](int implementation) {
    return [=, &group](int64_t calls) {
      if (implementation == kLockstep) return lockstep->Run(calls);
      const auto size = static_cast<size_t>(bytes);
      return implementation == kBothWays
                 ? RunBothWays(*link, calls, memory->vector(0), memory->vector(1), size)
                 : RunOneWay(*link, group.leads(), calls, memory->vector(0), memory->vector(1), size);
    };
  };
  MeasureOptions measure;
  measure.round_time = options.round_time;
  const int implementations = bytes <= kOneWayBytesMax ? 3 : 2;
  std::array<int64_t, 3> iterations = {};
  for (int i = 0; i < implementations; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(iterations[i], WarmUp(group, measure, calls_of(i)));
  }
  Rounds rounds;
  for (int round = 0; round < options.rounds; ++round) {
    for (int turn = 0; turn < implementations; ++turn) {
      const int i = (turn + round) % implementations;
      LOCKSTEP_ASSIGN_OR_RETURN(rounds[i].emplace_back(), TimeRound(group, iterations[i], calls_of(i)));
    }
  }
  return rounds;
}

// The cells of one limit, and its fields in `json`.
std::vector<std::string> Beside(const Rounds& rounds, Implementation limit, const std::string& name, Json* json) {
  const std::vector<double>& times = rounds[limit];
  Json& us = (*json)[name + "_us"] = Json();
  Json& spread = (*json)[name + "_ratio"] = Json();
  if (times.empty()) return {"-", "-", "-"};
  std::vector<double> ratios;
  for (size_t round = 0; round < times.size(); ++round) ratios.push_back(rounds[kLockstep][round] / times[round]);
  const Quartiles ratio = QuartilesOf(ratios);
  us = Median(times) * 1e6;
  spread = ToJson(ratio);
  return {MicrosecondsText(Median(times)), absl::StrFormat("%.2f", ratio.median), SpreadText(ratio, 2)};
}

}  // namespace

std::vector<int64_t> DefaultLimitSizes() {
  return {8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20};
}

absl::StatusOr<Json> CompareWithLimits(const ProcessGroup& group, const LimitsOptions& options, FILE* tables,
                                       Memory* memory) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<BareLink> link, ConnectBareLink(group, options.link));
  if (group.leads()) {
    Print(absl::StrCat("#\n# all_reduce in place beside ", options.link.fabric ? "the bare provider" : "bare sockets",
                       " that move the same bytes: both ways at once, and one "
                       "way (half a ping-pong)\n",
                       LimitsTable().Heading()),
          tables);
  }
  CaseKind kind;
  kind.in_place = true;
  LOCKSTEP_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Create(kind.dtype, kind.op, group.size()));
  Json rows = Json::array();
  for (const int64_t wanted_bytes : options.sizes) {
    const CaseSize size = SizeOfCase(kind, group.size(), wanted_bytes);
    Case lockstep(kind, size, group.communicator(), &pattern, memory);
    lockstep.Fill();
    LOCKSTEP_ASSIGN_OR_RETURN(const Rounds rounds, Compare(group, options, size.bytes, &lockstep, link.get(), memory));
    Json row = {{"size_bytes", size.bytes}, {"lockstep_us", Median(rounds[kLockstep]) * 1e6}};
    std::vector<std::string> cells = {absl::StrCat(size.bytes), MicrosecondsText(Median(rounds[kLockstep]))};
    for (const std::string& cell : Beside(rounds, kBothWays, "both_ways", &row)) cells.push_back(cell);
    for (const std::string& cell : Beside(rounds, kOneWay, "one_way", &row)) cells.push_back(cell);
    rows.push_back(std::move(row));
    if (group.leads()) Print(LimitsTable().Row(cells), tables);
  }
  return rows;
}

}  // namespace bench
}  // namespace lockstep
