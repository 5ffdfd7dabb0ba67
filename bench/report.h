// What benchmarks print: facts that numbers depend on, tables for people, one form of JSON for scripts, and the sizes that a table has
// rows for.
//
//   {"facts": {"cpu": ..., ...}, "rows": [{"name": ..., "bytes": 8, "time_us": 9.1, ...}, ...]}
//
// A row of a table is a JSON object, and its cells are fields of it. Units end the names of fields: _us, _ms, _gbps. A spread over rounds
// is {"low": ..., "median": ..., "high": ...}. bench/old_and_new.py and bench/compare/report.py read and write the same form.

#ifndef BENCH_REPORT_H_
#define BENCH_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "bench/measure.h"

namespace lockstep {
namespace bench {

using Json = nlohmann::ordered_json;
using Facts = std::vector<std::pair<std::string, std::string>>;

// Processor, kernel, TCP's congestion control, compiler, version and commit: a number without them is worth nothing. "unknown" for what
// this machine does not tell. Runs git, where the program was started by `bazel run`.
Facts MachineFacts();

Json ToJson(const Quartiles& quartiles);

// A table with right-aligned columns, the first one left-aligned where its width is negative. Every line but the rows begins with "#", as
// in nccl-tests, so that a row is what a script need not skip.
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
  // `output` null: nothing is printed, as by ranks that do not lead.
  explicit Report(FILE* output) : output_(output) {}

  // "# cpu: ...", one line for each.
  void AddFacts(const Facts& facts);
  void Print(const std::string& text);
  // Begins a table: `title` is what comes before its heading.
  void Begin(const std::string& title, Columns columns);
  // Of the table that was begun last. `printed` false: for scripts alone.
  void AddRow(Json row, bool printed = true);

  const Json& json() const { return json_; }
  // A relative path counts from the folder in which the user called `bazel run`, which changes it; else from this one. "-" is stdout. An
  // empty one and a report that is not printed write nothing. UNAVAILABLE names the file that cannot be written. What is not UTF-8 (in a
  // fact) is replaced.
  absl::Status Write(const std::string& path) const;

 private:
  FILE* const output_;
  Columns columns_;
  Json json_ = {{"facts", Json::object()}, {"rows", Json::array()}};
};

// "8", "64K", "25M", "1G": powers of 1024, as nccl-tests reads them. INVALID_ARGUMENT for anything else, and for what does not fit in 63
// bits.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// begin, begin x factor, ... as far as `end`, which may be the last one. INVALID_ARGUMENT for an end before the begin and for a factor
// below 2. A begin of 0 is followed by 1.
absl::StatusOr<std::vector<int64_t>> SweepSizes(absl::string_view begin, absl::string_view end, int64_t factor);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_REPORT_H_
