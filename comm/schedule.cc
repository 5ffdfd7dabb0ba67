#include "comm/schedule.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/algorithms/algorithms.h"

namespace lockstep {
namespace {

constexpr const char* kCollectiveNames[kCollectiveCount] = {"all_reduce", "broadcast",      "reduce",
                                                            "all_gather", "reduce_scatter", "barrier"};
constexpr const char* kAlgorithmNames[kAlgorithmCount] = {"auto", "ring", "recursive_doubling", "binomial",
                                                          "dissemination"};

// Who carries out what. The selector prefers the earlier of two that cost the same.
struct Entry {
  Collective collective;
  Algorithm algorithm;
  Schedule (*build)(const algorithms::Place& place);
};
constexpr Entry kEntries[] = {
    {Collective::kAllReduce, Algorithm::kRecursiveDoubling, algorithms::RecursiveDoublingAllReduce},
    {Collective::kAllReduce, Algorithm::kRing, algorithms::RingAllReduce},
    {Collective::kBroadcast, Algorithm::kBinomial, algorithms::BinomialBroadcast},
    {Collective::kReduce, Algorithm::kBinomial, algorithms::BinomialReduce},
    {Collective::kReduce, Algorithm::kRing, algorithms::RingReduce},
    {Collective::kAllGather, Algorithm::kRing, algorithms::RingAllGather},
    {Collective::kReduceScatter, Algorithm::kRing, algorithms::RingReduceScatter},
    {Collective::kBarrier, Algorithm::kDissemination, algorithms::DisseminationBarrier},
};

// A world of one: whatever the algorithm, the input is the result.
Schedule BuildAlone(Collective collective) {
  algorithms::StepList steps;
  if (collective == Collective::kBarrier) return steps.Finish(/*blocks=*/0, /*scratch_blocks=*/0);
  steps.Copy(algorithms::Input(0), algorithms::Output(0));
  return steps.Finish(/*blocks=*/1, /*scratch_blocks=*/0);
}

std::string ToString(const Operand& operand) {
  if (operand.blocks == 0) return "nothing";
  const char* window = operand.window == Window::kInput    ? "input"
                       : operand.window == Window::kOutput ? "output"
                                                           : "scratch";
  if (operand.blocks == 1) return absl::StrCat(window, "[", operand.block, "]");
  return absl::StrCat(window, "[", operand.block, "..", operand.block + operand.blocks - 1, "]");
}

}  // namespace

std::string Name(Collective collective) {
  const int index = static_cast<int>(collective);
  return IsValid(collective) ? kCollectiveNames[index] : absl::StrCat("collective ", index);
}

bool IsValid(Collective collective) { return static_cast<int>(collective) < kCollectiveCount; }

bool HasRoot(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce;
}

bool HasReduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

std::string Name(Algorithm algorithm) {
  const int index = static_cast<int>(algorithm);
  return index < kAlgorithmCount ? kAlgorithmNames[index] : absl::StrCat("algorithm ", index);
}

absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name) {
  for (int index = 0; index < kAlgorithmCount; ++index) {
    if (name == kAlgorithmNames[index]) return static_cast<Algorithm>(index);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown algorithm '", name, "'; known are ", absl::StrJoin(kAlgorithmNames, ", ")));
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
    case Step::Kind::kReduce:
      text =
          absl::StrCat("reduce ", ToString(step.target), " = ", ToString(step.target), " op ", ToString(step.source));
      break;
  }
  const char* separator = ", after #";
  for (int32_t index : step.after) {
    if (index == Step::kNone) continue;
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

absl::StatusOr<Schedule> BuildSchedule(Collective collective, Algorithm algorithm, Rank rank, int size, Rank root) {
  if (!IsValid(collective)) return absl::InvalidArgumentError(absl::StrCat("unknown ", Name(collective)));
  if (size < 1 || rank.value() < 0 || rank.value() >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(collective), ": rank ", rank.value(), " is outside a world of ", size));
  }
  if (!HasRoot(collective)) {
    root = Rank(0);
  } else if (root.value() < 0 || root.value() >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(collective), ": root ", root.value(), " is outside a world of ", size));
  }
  const Entry* found = nullptr;
  for (const Entry& entry : kEntries) {
    if (entry.collective == collective && entry.algorithm == algorithm) found = &entry;
  }
  if (found == nullptr) {
    const auto name = [](std::string* out, Algorithm known) { out->append(Name(known)); };
    return absl::InvalidArgumentError(absl::StrCat(Name(algorithm), " does not carry out ", Name(collective), "; ",
                                                   absl::StrJoin(AlgorithmsFor(collective), ", ", name), " does"));
  }
  Schedule schedule = size == 1 ? BuildAlone(collective) : found->build({rank.value(), size, root.value()});
  schedule.collective = collective;
  schedule.algorithm = algorithm;
  schedule.rank = rank;
  schedule.size = size;
  schedule.root = root;
  return schedule;
}

}  // namespace lockstep
