#include "bench/routes.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace bench {

std::string RoutesIn(const std::string& description, Rank self) {
  std::vector<std::string> routes;
  for (const absl::string_view line : absl::StrSplit(description, '\n')) {
    const size_t over = line.find(" over ");
    const bool another =
        absl::StartsWith(line, "rank ") && !absl::StartsWith(line, absl::StrCat("rank ", self.value(), " "));
    if (over == absl::string_view::npos || !another) continue;
    const std::string route(line.substr(over + 6));
    if (std::find(routes.begin(), routes.end(), route) == routes.end()) routes.push_back(route);
  }
  return routes.empty() ? "none" : absl::StrJoin(routes, ", ");
}

}  // namespace bench
}  // namespace lockstep
