#include "comm/schedule/schedule.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clipped.h"
#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep {
namespace {

constexpr const char* kCollectiveNames[kCollectiveCount] = {
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier", "gather", "scatter", "all_to_all"};

// Who carries out what.
struct Entry {
  Collective collective;
  Algorithm algorithm;
  Schedule (*build)(const algorithms::Place& place);
  unsigned properties;
};
using namespace algorithms;  // NOLINT(google-build-using-namespace): the names in the table
constexpr Entry kEntries[] = {
#define LOCKSTEP_SCHEDULE(collective, id, properties, proved) \
  {Collective::k##collective, Algorithm::k##id, algorithms::id##collective, properties},
#include "comm/schedule/algorithms.inc"
};

const Entry* FindEntry(Collective collective, Algorithm algorithm) {
  for (const Entry& entry : kEntries) {
    if (entry.collective == collective && entry.algorithm == algorithm) return &entry;
  }
  return nullptr;
}

absl::Status NotCarriedOut(Collective collective, Algorithm algorithm) {
  const auto name = [](std::string* out, Algorithm known) { out->append(Name(known)); };
  return absl::InvalidArgumentError(absl::StrCat(Name(algorithm), " does not carry out ", Name(collective),
                                                 "; known are ", absl::StrJoin(AlgorithmsFor(collective), ", ", name)));
}

bool Has(Collective collective, Algorithm algorithm, unsigned property) {
  const Entry* const entry = FindEntry(collective, algorithm);
  return entry != nullptr && (entry->properties & property) != 0;
}

// A world of one: whatever the algorithm, the input is the result.
Schedule BuildAlone(Collective collective) {
  algorithms::OrderedSteps steps;
  if (collective == Collective::kBarrier) return steps.Finish(/*blocks=*/0, /*scratch_blocks=*/0);
  steps.Copy(algorithms::Input(0), algorithms::Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

std::string ToString(const Operand& operand) {
  if (operand.blocks == 0) return "nothing";
  const char* window = operand.window == Window::kInput    ? "input"
                       : operand.window == Window::kOutput ? "output"
                                                           : "scratch";
  const auto range = [&operand](int first) {
    if (operand.blocks == 1) return absl::StrCat(first);
    return absl::StrCat(first, "..", first + operand.blocks - 1);
  };
  const std::string whose = operand.rank == Operand::kOwn ? "" : absl::StrCat("rank ", operand.rank, "'s ");
  const std::string text = absl::StrCat(whose, window, "[", range(operand.block), "]");
  // What scratch holds goes without saying where the vector is one block.
  if (operand.window != Window::kScratch || operand.holds == 0) return text;
  return absl::StrCat(text, " for [", range(operand.holds), "]");
}

std::string Join(const std::vector<Operand>& operands, const char* separator) {
  return absl::StrJoin(operands, separator,
                       [](std::string* out, const Operand& operand) { out->append(ToString(operand)); });
}

}  // namespace

std::string Name(Collective collective) {
  const int index = static_cast<int>(collective);
  return IsValid(collective) ? kCollectiveNames[index] : absl::StrCat("collective ", index);
}

bool IsValid(Collective collective) { return static_cast<int>(collective) < kCollectiveCount; }

bool HasRoot(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

bool IsByRank(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return true;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
      break;
  }
  return false;
}

bool IsOwnBlock(Collective collective, Window window) {
  switch (window) {
    case Window::kInput:
      return collective == Collective::kAllGather || collective == Collective::kGather;
    case Window::kOutput:
      return collective == Collective::kReduceScatter || collective == Collective::kScatter;
    case Window::kScratch:
      break;
  }
  return false;
}

std::string Name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
#define LOCKSTEP_ALGORITHM(number, id, name, properties) \
  case Algorithm::k##id:                                 \
    return #name;
#include "comm/schedule/algorithms.inc"
  }
  return absl::StrCat("algorithm ", static_cast<int>(algorithm));
}

absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name) {
  std::string known;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (name == Name(algorithm)) return algorithm;
    absl::StrAppend(&known, known.empty() ? "" : ", ", Name(algorithm));
  }
  if (name == "one_pass") return Algorithm::kDirect;  // its name until 0.2
  if (name == "one_line") return Algorithm::kInline;
  return absl::InvalidArgumentError(absl::StrCat("unknown algorithm '", Clipped(name), "'; known are ", known));
}

std::string ToString(const Step& step) {
  std::string text;
  switch (step.kind) {
    case Step::Kind::kSend:
      text = absl::StrCat("send ", ToString(step.source), " to rank ", step.peer.value());
      break;
    case Step::Kind::kReceive:
      text = absl::StrCat("receive ", ToString(step.target), " from rank ", step.peer.value());
      break;
    case Step::Kind::kReceiveReduce:
      text = absl::StrCat("receive_reduce from rank ", step.peer.value(), ": ", ToString(step.target), " = ",
                          ToString(step.source), " op arriving");
      break;
    case Step::Kind::kCopy:
      text = absl::StrCat("copy ", ToString(step.target), " = ", ToString(step.source));
      break;
    case Step::Kind::kReduceMany:
      text = absl::StrCat("reduce_many ", ToString(step.target), step.more_targets.empty() ? "" : ", ",
                          Join(step.more_targets, ", "), " = ", Join(step.terms, " op "));
      break;
    case Step::Kind::kBarrier:
      text = "barrier";
      break;
    case Step::Kind::kShare:
      text = absl::StrCat("share ", ToString(step.source), ": ", ToString(step.target), " = everyone's");
      break;
  }
  const char* separator = ", after #";
  for (int32_t index : step.after) {
    absl::StrAppend(&text, separator, index);
    separator = " #";
  }
  return text;
}

std::string ToString(const Schedule& schedule) {
  std::string text = absl::StrCat(Name(schedule.collective), " ", Name(schedule.algorithm), ", rank ",
                                  schedule.rank.value(), " of ", schedule.size);
  if (HasRoot(schedule.collective)) absl::StrAppend(&text, ", root ", schedule.root.value());
  absl::StrAppend(&text, ", ", schedule.blocks, " blocks, ", schedule.scratch_blocks, " of scratch\n");
  for (size_t index = 0; index < schedule.steps.size(); ++index) {
    absl::StrAppend(&text, "#", index, " ", ToString(schedule.steps[index]), "\n");
  }
  return text;
}

Algorithms AlgorithmsFor(Collective collective) {
  Algorithms found;
  for (const Entry& entry : kEntries) {
    if (entry.collective == collective) found.push_back(entry.algorithm);
  }
  return found;
}

Algorithms ChoicesFor(Collective collective) {
  Algorithms found;
  for (const Algorithm algorithm : AlgorithmsFor(collective)) {
    if (!Has(algorithm, kOnlyByName)) found.push_back(algorithm);
  }
  return found;
}

absl::Status CheckAlgorithm(Collective collective, Algorithm algorithm) {
  const bool known = algorithm == Algorithm::kAuto || FindEntry(collective, algorithm) != nullptr;
  return known ? absl::OkStatus() : NotCarriedOut(collective, algorithm);
}

bool NeedsEqualBlocks(Collective collective, Algorithm algorithm) { return Has(collective, algorithm, kEqualBlocks); }

bool ReducesInRankOrder(Collective collective, Algorithm algorithm) { return Has(collective, algorithm, kRankOrder); }

bool RoundsOnce(Collective collective, Algorithm algorithm) { return Has(collective, algorithm, kOneRounding); }

absl::StatusOr<Schedule> BuildSchedule(Collective collective, Algorithm algorithm, Rank rank, int size, Rank root,
                                       const Topology& topology) {
  if (!IsValid(collective)) return absl::InvalidArgumentError(absl::StrCat("unknown ", Name(collective)));
  const auto error = [&](const auto&... fault) {
    return absl::InvalidArgumentError(absl::StrCat(Name(collective), ": ", fault...));
  };
  const auto is_outside = [size](Rank some) { return some.value() < 0 || some.value() >= size; };
  if (size < 1 || is_outside(rank)) return error("rank ", rank.value(), " is outside a world of ", size);
  if (!HasRoot(collective)) root = Rank(0);
  if (is_outside(root)) return error("root ", root.value(), " is outside a world of ", size);
  const size_t placed = topology.host_of_rank.size();
  if (placed != 0 && placed != static_cast<size_t>(size)) {
    return error("the topology is of ", placed, " ranks, and the world of ", size);
  }
  const Entry* const entry = FindEntry(collective, algorithm);
  if (entry == nullptr) return NotCarriedOut(collective, algorithm);
  Schedule schedule = size == 1 ? BuildAlone(collective) : entry->build({rank.value(), size, root.value(), &topology});
  schedule.collective = collective;
  schedule.algorithm = algorithm;
  schedule.rank = rank;
  schedule.size = size;
  schedule.root = root;
  return schedule;
}

}  // namespace lockstep
