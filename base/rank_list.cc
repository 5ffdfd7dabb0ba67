#include "base/rank_list.h"

#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {

std::string RankList(absl::Span<const int> ranks) {
  std::vector<std::string> ranges;
  for (size_t begin = 0; begin < ranks.size();) {
    size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    ranges.push_back(end - begin == 1 ? absl::StrCat(ranks[begin]) : absl::StrCat(ranks[begin], "-", ranks[end - 1]));
    begin = end;
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranges, ", "));
}

}  // namespace lockstep
