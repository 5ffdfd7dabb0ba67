#include "tests/logged_refusals.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace lockstep {

std::map<Refusal, int64_t> LoggedRefusals(absl::string_view log) {
  std::map<Refusal, int64_t> counts;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    if (!absl::StrContains(line, ": turned away ")) continue;
    int64_t more = 0;
    if (const size_t at = line.rfind(" (and "); at != absl::string_view::npos) {
      const absl::string_view number = line.substr(at + 6, line.find(' ', at + 6) - at - 6);
      if (!absl::SimpleAtoi(number, &more)) more = 0;
    }
    for (int kind = 0; kind < static_cast<int>(Refusal::kCount); ++kind) {
      if (!absl::StrContains(line, Text(static_cast<Refusal>(kind)))) continue;
      counts[static_cast<Refusal>(kind)] += 1 + more;
      break;
    }
  }
  return counts;
}

}  // namespace lockstep
