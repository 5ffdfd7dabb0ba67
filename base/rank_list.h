// Ranks in messages.

#ifndef BASE_RANK_LIST_H_
#define BASE_RANK_LIST_H_

#include <algorithm>
#include <string>

#include "absl/types/span.h"

namespace lockstep {

// "rank 3", "ranks 2, 5-7". REQUIRES that ranks are sorted, each once.
std::string RankList(absl::Span<const int> ranks);

// The rank to name where ranks should have had the same value: the one that differs from all others, else the lowest that differs from the
// first. By rank. REQUIRES that not all are equal.
template <typename Values>
int OddOne(const Values& values) {
  const auto first = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value != values[0]; });
  const bool first_is_alone = values.size() > 2 && first == values.begin() + 1 &&
                              std::all_of(first, values.end(), [&](const auto& value) { return value == values[1]; });
  return first_is_alone ? 0 : static_cast<int>(first - values.begin());
}

}  // namespace lockstep

#endif  // BASE_RANK_LIST_H_
