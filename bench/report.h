// What benchmarks print: facts that numbers depend on, tables for people, one form of JSON for scripts; and the sizes and statistics that
// tables have.
//
//   {"facts": {"cpu": ..., ...}, "rows": [{"name": ..., "bytes": 8, "time_us": 9.1, ...}, ...]}
//
// A row of a table is a JSON object, and its cells are fields of it. Names of fields end with units: _us, _ms, _gbps. A spread over
// rounds is {"low": ..., "median": ..., "high": ...}. bench/old_and_new.py and bench/compare/report.py use the same form.

#ifndef BENCH_REPORT_H_
#define BENCH_REPORT_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::bench {

using Json = nlohmann::ordered_json;
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};

// Between two measurements, linearly. Zeros for none.
Quartiles QuartilesOf(std::vector<double> values);
double Median(const std::vector<double>& values);

double SecondsSince(std::chrono::steady_clock::time_point begin);

// Processor, kernel, TCP's congestion control, compiler, version and commit; "unknown" for what this machine does not tell. Runs git if
// `bazel run` started the program.
Facts MachineFacts();

Json ToJson(const Quartiles& quartiles);

// A table has right-aligned columns; a negative width aligns the first one left. As in nccl-tests every line that is no row begins with
// "#", so that scripts find the rows.
struct Column {
  static constexpr int kSevenPlaces = -1;

  int width;
  std::string heading;
  std::string unit;
  std::string at;  // the cell in a row, as a JSON pointer: "/in_place/time_us"
  int digits = 2;  // of a number that is not whole, behind the point; kSevenPlaces: as many as fit
};
using Columns = std::vector<Column>;

std::string HeadingText(const Columns& columns);
// Of a spread the cell is "1.10 - 1.20"; of null, and of what is not there, "-".
std::string RowText(const Columns& columns, const Json& row);

// A program's document, printed as it grows.
class Report {
 public:
  // `output` null: nothing is printed. So do ranks that do not lead.
  explicit Report(FILE* output) : output_(output) {}

  // "# cpu: ...", one line for each.
  void AddFacts(const Facts& facts);
  void Print(const std::string& text);
  // Begins a table. Prints `title` before its heading.
  void Begin(const std::string& title, Columns columns);
  // Adds a row to the last table. `printed` false: to the JSON alone.
  void AddRow(Json row, bool printed = true);

  const Json& json() const { return json_; }
  // Writes the JSON. A relative path starts at the folder in which the user called `bazel run`, or at the current one. Bytes that are not
  // UTF-8 are replaced. Does nothing for an empty path and for a report that is not printed. UNAVAILABLE names the file that cannot be
  // written.
  absl::Status Write(const std::string& path) const;

 private:
  FILE* const output_;
  Columns columns_;
  Json json_ = {{"facts", Json::object()}, {"rows", Json::array()}};
};

// "8", "64K", "25M", "1G": powers of 1024, as nccl-tests reads them. INVALID_ARGUMENT for anything else, and for what does not fit in 63
// bits.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// begin, begin x factor, ... up to and including `end`. After a begin of 0 comes 1. INVALID_ARGUMENT for an end before the begin and
// for a factor below 2.
absl::StatusOr<std::vector<int64_t>> SweepSizes(absl::string_view begin, absl::string_view end, int64_t factor);

}  // namespace lockstep::bench

#endif  // BENCH_REPORT_H_
