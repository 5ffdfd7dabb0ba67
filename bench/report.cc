#include "bench/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "capi/lockstep.h"

namespace lockstep::bench {
namespace {

constexpr char kUnknown[] = "unknown";

std::string FirstLine(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line.empty() ? kUnknown : line;
}

std::string CpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos) return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return kUnknown;
}

std::string Kernel() {
  utsname names;
  return uname(&names) == 0 ? absl::StrCat(names.sysname, " ", names.release, " ", names.machine) : kUnknown;
}

// The first line that git prints; empty when it fails.
std::string Git(const std::string& folder, const std::string& arguments) {
  const std::string quoted = absl::StrCat("'", absl::StrReplaceAll(folder, {{"'", "'\\''"}}), "'");
  FILE* const output = popen(absl::StrCat("git -C ", quoted, " ", arguments, " 2>/dev/null").c_str(), "r");
  if (output == nullptr) return "";
  char line[256] = "";
  const bool read = fgets(line, sizeof(line), output) != nullptr;
  // What is left unread would end git with SIGPIPE.
  for (char rest[256]; fgets(rest, sizeof(rest), output) != nullptr;) continue;
  return pclose(output) == 0 && read ? std::string(absl::StripAsciiWhitespace(line)) : "";
}

std::string Commit() {
  const char* const folder = getenv("BUILD_WORKSPACE_DIRECTORY");
  if (folder == nullptr) return kUnknown;
  const std::string commit = Git(folder, "rev-parse --short=12 HEAD");
  if (commit.empty()) return kUnknown;
  return Git(folder, "status --porcelain").empty() ? commit : commit + " with local changes";
}

std::string Compiler() {
#ifdef __clang__
  const char* const name = __VERSION__;  // begins with its name
#else
  const char* const name = "gcc " __VERSION__;
#endif
#ifdef __OPTIMIZE__
  return name;
#else
  return absl::StrCat(name, " without optimisation: build with -c opt");
#endif
}

std::string CellText(const Column& column, const Json& row) {
  const Json::json_pointer at(column.at);
  if (!row.contains(at) || row.at(at).is_null()) return "-";
  const Json& cell = row.at(at);
  const auto number = [&column](const Json& value) {
    const double real = value.get<double>();
    const int most = real >= 10'000 ? 0 : real >= 100 ? 1 : 2;
    return absl::StrFormat("%.*f", column.digits == Column::kSevenPlaces ? most : column.digits, real);
  };
  if (cell.is_object()) return absl::StrCat(number(cell.at("low")), " - ", number(cell.at("high")));
  if (cell.is_number_integer()) return absl::StrCat(cell.get<int64_t>());
  return cell.is_number() ? number(cell) : cell.get<std::string>();
}

std::string Line(const Columns& columns, absl::FunctionRef<std::string(const Column&)> cell) {
  std::string text;
  for (const Column& column : columns) {
    absl::StrAppendFormat(&text, "%s%*s", &column == &columns.front() ? "" : "  ", column.width, cell(column));
  }
  return text + "\n";
}

double AtFraction(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Quartiles QuartilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {AtFraction(values, 0.25), AtFraction(values, 0.5), AtFraction(values, 0.75)};
}

double Median(const std::vector<double>& values) { return QuartilesOf(values).median; }

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Facts MachineFacts() {
  return {
      {"cpu", absl::StrCat(CpuModel(), ", ", sysconf(_SC_NPROCESSORS_ONLN), " cores")},
      {"kernel", Kernel()},
      {"tcp congestion control", FirstLine("/proc/sys/net/ipv4/tcp_congestion_control")},
      {"lockstep", absl::StrCat(LOCKSTEP_VERSION_MAJOR, ".", LOCKSTEP_VERSION_MINOR, ".", LOCKSTEP_VERSION_PATCH,
                                ", commit ", Commit())},
      {"compiler", Compiler()},
  };
}

Json ToJson(const Quartiles& quartiles) {
  return {{"low", quartiles.low}, {"median", quartiles.median}, {"high", quartiles.high}};
}

std::string HeadingText(const Columns& columns) {
  std::string text;
  for (std::string Column::*const part : {&Column::heading, &Column::unit}) {
    std::string line = Line(columns, [part](const Column& column) { return column.*part; });
    if (line.find_first_not_of(" \n") == std::string::npos) continue;  // no units
    // The first cell ends, or begins, with spaces less for the mark in front of it.
    const int left = -columns.front().width;
    if (left > 0) line = absl::StrCat("# ", line.substr(0, left - 2), line.substr(left));
    line[0] = '#';
    absl::StrAppend(&text, line);
  }
  return text;
}

std::string RowText(const Columns& columns, const Json& row) {
  return Line(columns, [&row](const Column& column) { return CellText(column, row); });
}

void Report::AddFacts(const Facts& facts) {
  for (const auto& fact : facts) {
    json_["facts"][fact.first] = fact.second;
    Print(absl::StrCat("# ", fact.first, ": ", fact.second, "\n"));
  }
}

void Report::Print(const std::string& text) {
  if (output_ == nullptr) return;
  std::fputs(text.c_str(), output_);
  std::fflush(output_);
}

void Report::Begin(const std::string& title, Columns columns) {
  columns_ = std::move(columns);
  Print(title + HeadingText(columns_));
}

void Report::AddRow(Json row, bool printed) {
  if (printed) Print(RowText(columns_, row));
  json_["rows"].push_back(std::move(row));
}

absl::Status Report::Write(const std::string& path) const {
  if (output_ == nullptr || path.empty()) return absl::OkStatus();
  const std::string text = json_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  const char* const folder = getenv("BUILD_WORKING_DIRECTORY");
  const bool as_it_is = absl::StartsWith(path, "/") || folder == nullptr;
  const std::string file = as_it_is ? path : absl::StrCat(folder, "/", path);
  std::ofstream stream(file);
  stream << text;
  stream.close();
  return stream ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", file));
}

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  const auto invalid = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("size '", text, "' ", what));
  };
  absl::string_view digits = text;
  int shift = 0;
  if (!digits.empty()) {
    const size_t unit = absl::string_view("KMGT").find(absl::ascii_toupper(digits.back()));
    if (unit != absl::string_view::npos) {
      shift = 10 * static_cast<int>(unit + 1);
      digits.remove_suffix(1);
    }
  }
  const bool number = !digits.empty() &&
                      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (!number) return invalid("is not a number of bytes with K, M, G or T behind it at most");
  int64_t count = 0;
  if (!absl::SimpleAtoi(digits, &count) || count > std::numeric_limits<int64_t>::max() >> shift) {
    return invalid("is too large");
  }
  return count << shift;
}

absl::StatusOr<std::vector<int64_t>> SweepSizes(absl::string_view begin, absl::string_view end, int64_t factor) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t first, ParseByteCount(begin));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t last, ParseByteCount(end));
  if (last < first) return absl::InvalidArgumentError(absl::StrCat("sizes end at ", last, ", before ", first));
  if (factor < 2) return absl::InvalidArgumentError(absl::StrCat("sizes grow by a factor of ", factor, ", below 2"));
  std::vector<int64_t> sizes;
  for (int64_t size = first; size <= last; size = size == 0 ? 1 : size * factor) {
    sizes.push_back(size);
    if (size > std::numeric_limits<int64_t>::max() / factor) break;
  }
  return sizes;
}

}  // namespace lockstep::bench
