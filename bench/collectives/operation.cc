#include "bench/collectives/operation.h"

#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace bench {
namespace {

std::vector<Operation> AllOperations() {
  std::vector<Operation> all;
  for (const bool unequal : {false, true}) {
    for (int i = 0; i < kCollectiveCount; ++i) {
      Operation operation;
      operation.collective = static_cast<Collective>(i);
      operation.unequal = unequal;
      if (!unequal || operation.has_blocks()) all.push_back(operation);
    }
  }
  all.emplace_back().messages = true;
  return all;
}

}  // namespace

std::string Name(const Operation& operation) {
  if (operation.messages) return "send_receive";
  return absl::StrCat(Name(operation.collective), operation.unequal ? "_v" : "");
}

absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text) {
  const std::vector<Operation> all = AllOperations();
  if (text == "all") return all;
  std::vector<Operation> chosen;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const size_t before = chosen.size();
    for (const Operation& operation : all) {
      if (Name(operation) == name) chosen.push_back(operation);
    }
    if (chosen.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no collective '", name, "'; known are all, ",
          absl::StrJoin(all, ", ", [](std::string* out, const Operation& some) { out->append(Name(some)); })));
    }
  }
  return chosen;
}

std::vector<int64_t> BlockCounts(int64_t count, int ranks, bool unequal) {
  std::vector<int64_t> counts(ranks);
  const int64_t parts = unequal ? int64_t{ranks} * (ranks + 1) / 2 : ranks;
  for (int rank = 0; rank < ranks; ++rank) counts[rank] = count / parts * (unequal ? rank + 1 : 1);
  counts.back() += count - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  return counts;
}

double AlgorithmBandwidth(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

double BusFactor(const Operation& operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation.messages) return 1;
  switch (operation.collective) {
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return others;
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
      break;
  }
  return 1;
}

}  // namespace bench
}  // namespace lockstep
