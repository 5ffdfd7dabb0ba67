#include "reducer/plan/plan_text.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "xxhash.h"

namespace lockstep {
namespace {

constexpr absl::string_view kTitle = "lockstep-bucket-plan 1";

std::string TableLine(absl::Span<const Parameter> parameters) {
  const std::string table = Serialize(parameters);
  return absl::StrCat("parameters ", absl::Hex(XXH3_64bits(table.data(), table.size()), absl::kZeroPad16));
}

absl::Status Bad(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("bucket plan, line ", line, ": ", what));
}

}  // namespace

std::string PlanToText(absl::Span<const Parameter> parameters, const BucketGroups& groups) {
  std::string text = absl::StrCat(kTitle, "\n", TableLine(parameters), "\n");
  for (const std::vector<size_t>& group : groups) absl::StrAppend(&text, "bucket ", absl::StrJoin(group, " "), "\n");
  return text;
}

absl::StatusOr<BucketGroups> PlanFromText(absl::Span<const Parameter> parameters, const PlanRules& rules,
                                          const std::string& text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.empty() || lines[0] != kTitle) return Bad(1, absl::StrCat("not \"", kTitle, "\""));
  if (lines.size() < 2 || lines[1] != TableLine(parameters)) {
    return Bad(2, "it was made for another table of parameters");
  }
  BucketGroups groups;
  for (size_t i = 2; i < lines.size(); ++i) {
    absl::string_view rest = lines[i];
    if (!absl::ConsumePrefix(&rest, "bucket ")) return Bad(i + 1, "not a bucket");
    groups.emplace_back();
    for (const absl::string_view word : absl::StrSplit(rest, ' ', absl::SkipEmpty())) {
      uint64_t index = 0;
      if (!absl::SimpleAtoi(word, &index)) return Bad(i + 1, absl::StrCat("not a number: ", word));
      groups.back().push_back(index);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckGroups(parameters, rules, groups), "bucket plan"));
  return groups;
}

}  // namespace lockstep
