#include "transport/store/slurm.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clipped.h"
#include "base/env.h"

namespace lockstep {
namespace {

bool IsOfHostName(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; }

// "" if these are no ranges.
std::string FirstNumber(absl::string_view ranges) {
  std::string first;
  for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
    for (const absl::string_view number : absl::StrSplit(range, absl::MaxSplits('-', 1))) {
      if (number.empty() || number.find_first_not_of("0123456789") != absl::string_view::npos) return "";
      if (first.empty()) first = std::string(number);
    }
  }
  return first;
}

}  // namespace

absl::StatusOr<std::string> FirstSlurmHost(absl::string_view list) {
  const auto wrong = [list] {
    return absl::InvalidArgumentError(absl::StrCat("'", Clipped(list), "': takes a node list, such as n[1-3,07-09],x"));
  };
  std::string host;
  for (absl::string_view rest = list; !rest.empty() && rest[0] != ',';) {
    if (rest[0] != '[') {
      if (!IsOfHostName(rest[0])) return wrong();
      host.push_back(rest[0]);
      rest.remove_prefix(1);
      continue;
    }
    const size_t end = rest.find(']');
    if (end == absl::string_view::npos) return wrong();
    const std::string number = FirstNumber(rest.substr(1, end - 1));
    if (number.empty()) return wrong();
    host += number;
    rest.remove_prefix(end + 1);
  }
  if (host.empty()) return wrong();
  return host;
}

absl::StatusOr<int> SlurmTasksOnNode(absl::string_view tasks_per_node, int64_t node) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("'", Clipped(tasks_per_node), "': ", why));
  };
  int64_t before = 0;
  int found = 0;
  for (const absl::string_view group : absl::StrSplit(tasks_per_node, ',')) {
    const size_t open = group.find("(x");
    absl::string_view times = "1";
    if (open != absl::string_view::npos) {
      times = group.substr(open + 2);
      if (!absl::ConsumeSuffix(&times, ")")) times = "";
    }
    int64_t tasks = 0;
    int64_t nodes = 0;
    if (!ParseInteger(group.substr(0, open), &tasks) || !ParseInteger(times, &nodes) || tasks < 1 || nodes < 1 ||
        tasks > std::numeric_limits<int>::max() || nodes > std::numeric_limits<int>::max()) {
      return wrong("takes counts of tasks, such as 2(x3),1");
    }
    if (node >= before && node < before + nodes) found = static_cast<int>(tasks);
    before += nodes;
  }
  if (found > 0) return found;
  return wrong(absl::StrCat("has no node ", node));
}

uint16_t SlurmPort(int64_t job, int64_t step) {
  const uint64_t number = 31 * static_cast<uint64_t>(job) + static_cast<uint64_t>(step);
  return static_cast<uint16_t>(kSlurmPortFirst + number % kSlurmPortCount);
}

}  // namespace lockstep
