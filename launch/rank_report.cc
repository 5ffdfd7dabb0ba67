#include "launch/rank_report.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr size_t kBytesMax = 1 << 20;
constexpr size_t kMessageBytesMax = 300;
constexpr int64_t kSecondsMax = 9'000'000'000;  // whose nanoseconds still fit

// A member of an object; null if there is none.
const Json& Member(const Json& object, const char* name) {
  static const Json* const null = new Json;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : *null;
}

std::string Text(const Json& value) { return value.is_string() ? value.get<std::string>() : ""; }

int64_t Number(const Json& value, int64_t otherwise) {
  int64_t number = otherwise;
  if (value.is_number_integer()) return value.get<int64_t>();
  return absl::SimpleAtoi(Text(value), &number) ? number : otherwise;
}

// The first line, without what a terminal would not print.
std::string OneLine(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  std::string line(text.substr(0, std::min(text.find('\n'), kMessageBytesMax)));
  if (line.size() < text.size()) line += " ...";
  std::replace_if(line.begin(), line.end(), absl::ascii_iscntrl, '?');
  return line;
}

}  // namespace

absl::optional<RankReport> ParseRankReport(absl::string_view text, int rank, int world_size) {
  const Json file = Json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  const Json& message = Member(file, "message");
  if (!message.is_object() && !message.is_string()) return absl::nullopt;
  const Json& ours = Member(file, "lockstep");
  const Json& extra = Member(message, "extraInfo");
  const std::string stack = Text(Member(extra, "py_callstack"));
  const std::string where = Text(Member(ours, "where"));
  RankReport report;
  report.message = OneLine(message.is_string() ? Text(message) : Text(Member(message, "message")));
  if (!where.empty()) absl::StrAppend(&report.message, " (", OneLine(where), ")");
  if (absl::StrContains(stack, "\n")) report.traceback = stack;
  const int64_t seconds = Number(Member(message.is_string() ? file : extra, "timestamp"), 0);
  report.time_ns = Number(Member(ours, "time_ns"), std::clamp<int64_t>(seconds, 0, kSecondsMax) * 1'000'000'000);
  report.pid = Number(Member(ours, "pid"), 0);
  const bool same_world =
      Number(Member(ours, "rank"), -1) == rank && Number(Member(ours, "world_size"), -1) == world_size;
  const int64_t failed_rank = Number(Member(ours, "failed_rank"), -1);
  const int64_t blamed = Number(Member(ours, "launched_as"), same_world ? failed_rank : -1);
  if (blamed >= 0 && blamed < world_size) report.blames = static_cast<int>(blamed);
  return report;
}

absl::StatusOr<ReportFolder> ReportFolder::Create() {
  const std::string parent = GetEnv("LOCKSTEP_REPORT_FOLDER").value_or(GetEnv("TMPDIR").value_or("/tmp"));
  std::string path = absl::StrCat(parent, "/lockstep-run.XXXXXX");
  if (mkdtemp(&path[0]) == nullptr) return ErrnoStatus(errno, absl::StrCat("make the folder ", path));
  return ReportFolder(std::move(path));
}

std::string ReportFolder::ErrorFile(int rank) const { return absl::StrCat(path_, "/error.rank", rank, ".json"); }

absl::optional<RankReport> ReportFolder::Read(int rank, int world_size) const {
  std::ifstream file(ErrorFile(rank));
  if (!file.good()) return absl::nullopt;
  std::string text(kBytesMax, '\0');
  file.read(&text[0], text.size());
  text.resize(file.gcount());
  return ParseRankReport(text, rank, world_size);
}

void ReportFolder::Remove() const {
  std::error_code unused;
  std::filesystem::remove_all(path_, unused);
}

bool ReportFolder::RemoveIfEmpty() const { return rmdir(path_.c_str()) == 0; }

}  // namespace lockstep
