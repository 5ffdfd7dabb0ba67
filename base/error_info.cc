#include "base/error_info.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace {

// Shows in the status's own ToString, before the text.
constexpr char kTypeUrl[] = "lockstep";

// The record separator, which is in no text of ours. The message comes behind it, so that it is what gets cut where room is short.
constexpr char kInfoEnds[] = "\x1e";

template <typename T>
void Append(absl::string_view name, const absl::optional<T>& value, std::string* text) {
  if (value.has_value()) absl::StrAppend(text, text->empty() ? "" : " ", name, "=", *value);
}

template <typename T>
absl::optional<T> ToNumber(absl::string_view text) {
  T value = 0;
  if (!absl::SimpleAtoi(text, &value)) return absl::nullopt;
  return value;
}

}  // namespace

bool ErrorInfo::empty() const { return *this == ErrorInfo(); }

absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info) {
  if (status.ok() || info.empty()) return status;
  ErrorInfo merged = GetErrorInfo(status);
  if (!merged.failed_rank.has_value()) merged.failed_rank = info.failed_rank;
  if (!merged.parameter.has_value()) merged.parameter = info.parameter;
  if (merged.collective.empty()) {
    merged.collective = info.collective;
    merged.sequence = info.sequence;
  }
  if (!merged.bucket.has_value()) merged.bucket = info.bucket;
  status.SetPayload(kTypeUrl, absl::Cord(ToText(merged)));
  return status;
}

absl::Status WithFailedRank(absl::Status status, int rank) {
  ErrorInfo info;
  info.failed_rank = rank;
  return WithErrorInfo(std::move(status), info);
}

ErrorInfo GetErrorInfo(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kTypeUrl);
  return payload.has_value() ? ErrorInfoFromText(std::string(*payload)) : ErrorInfo();
}

std::string ToText(const ErrorInfo& info) {
  std::string text;
  Append("failed_rank", info.failed_rank, &text);
  Append("parameter", info.parameter, &text);
  if (!info.collective.empty()) absl::StrAppend(&text, text.empty() ? "" : " ", "collective=", info.collective);
  Append("sequence", info.sequence, &text);
  Append("bucket", info.bucket, &text);
  return text;
}

ErrorInfo ErrorInfoFromText(absl::string_view text) {
  ErrorInfo info;
  for (const absl::string_view field : absl::StrSplit(text, ' ')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(field, absl::MaxSplits('=', 1));
    const auto& [name, value] = parts;
    if (name == "failed_rank") info.failed_rank = ToNumber<int>(value);
    if (name == "parameter") info.parameter = ToNumber<int64_t>(value);
    if (name == "collective") info.collective = std::string(value);
    if (name == "sequence") info.sequence = ToNumber<uint64_t>(value);
    if (name == "bucket") info.bucket = ToNumber<int64_t>(value);
  }
  return info;
}

std::string PackMessage(const absl::Status& status) {
  const std::string info = ToText(GetErrorInfo(status));
  // What comes from outside may have the separator in it: then it has to stand before, too.
  const bool bare = info.empty() && !absl::StrContains(status.message(), kInfoEnds);
  return absl::StrCat(info, bare ? "" : kInfoEnds, status.message());
}

absl::Status UnpackMessage(absl::StatusCode code, absl::string_view packed) {
  const size_t end = packed.find(kInfoEnds);
  if (end == absl::string_view::npos) return absl::Status(code, packed);
  return WithErrorInfo(absl::Status(code, packed.substr(end + 1)), ErrorInfoFromText(packed.substr(0, end)));
}

}  // namespace lockstep
