#include "tests/logged_refusals.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lockstep {
namespace {

using Counts = std::map<Refusal, int64_t>;

// Before the text at `at`, which a blank parts from what stands before it.
int64_t NumberBefore(absl::string_view line, size_t at) {
  const size_t blank = line.rfind(' ', at - 1);
  int64_t number = 0;
  return absl::SimpleAtoi(line.substr(blank + 1, at - blank - 1), &number) ? number : 0;
}

}  // namespace

Counts LoggedRefusals(absl::string_view log) {
  Counts counts;
  std::map<absl::string_view, Counts> open;  // of listeners that have not ended, by their names
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    const size_t at = line.find("turned away ");
    const size_t name = line.find("] ");
    if (at == absl::string_view::npos || name >= at) continue;
    absl::string_view listener = line.substr(name + 2, at - name - 2);
    const bool ends = absl::ConsumeSuffix(&listener, " ends: ");
    if (!ends && !absl::ConsumeSuffix(&listener, ": ")) continue;
    if (ends) open.erase(listener);
    for (int i = 0; i < static_cast<int>(Refusal::kCount); ++i) {
      const auto kind = static_cast<Refusal>(i);
      const size_t text = line.find(ends ? absl::StrCat(" (", Text(kind), ")") : Text(kind), at);
      if (text == absl::string_view::npos) continue;
      if (ends) {
        counts[kind] += NumberBefore(line, text);
        continue;
      }
      const size_t more = line.rfind(" more since the last such line)");
      open[listener][kind] += more == absl::string_view::npos ? 1 : 1 + NumberBefore(line, more);
      break;
    }
  }
  for (const auto& entry : open) {
    for (const auto& [kind, count] : entry.second) counts[kind] += count;
  }
  return counts;
}

}  // namespace lockstep
