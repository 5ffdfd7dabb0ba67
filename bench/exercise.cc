#include "bench/exercise.h"

#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace bench {
namespace {

std::vector<Exercise> AllExercises() {
  std::vector<Exercise> all;
  for (const bool unequal : {false, true}) {
    for (int i = 0; i < kCollectiveCount; ++i) {
      Exercise exercise;
      exercise.collective = static_cast<Collective>(i);
      exercise.unequal = unequal;
      if (!unequal || exercise.has_blocks()) all.push_back(exercise);
    }
  }
  all.emplace_back().messages = true;
  return all;
}

}  // namespace

std::string Name(const Exercise& exercise) {
  if (exercise.messages) return "send_receive";
  return absl::StrCat(Name(exercise.collective), exercise.unequal ? "_v" : "");
}

absl::StatusOr<std::vector<Exercise>> ParseExercises(absl::string_view text) {
  const std::vector<Exercise> all = AllExercises();
  if (text == "all") return all;
  std::vector<Exercise> chosen;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    const size_t before = chosen.size();
    for (const Exercise& exercise : all) {
      if (Name(exercise) == name) chosen.push_back(exercise);
    }
    if (chosen.size() == before) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no collective '", name, "'; known are all, ",
          absl::StrJoin(all, ", ", [](std::string* out, const Exercise& some) { out->append(Name(some)); })));
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

}  // namespace bench
}  // namespace lockstep
