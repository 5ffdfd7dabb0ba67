// What benchmarks print: facts that numbers depend on, tables for people, JSON for scripts, and the sizes that a table has rows for.

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

// "# cpu: ...", one line for each.
std::string FactsText(const Facts& facts);
Json ToJson(const Facts& facts);
// {"low": ..., "median": ..., "high": ...}
Json ToJson(const Quartiles& quartiles);

// A table with right-aligned columns, the first one left-aligned where its width is negative. Every line but the rows begins with "#", as
// in nccl-tests, so that a row is what a script need not skip.
class Table {
 public:
  struct Column {
    int width;
    std::string heading;
    std::string unit;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  std::string Heading() const;
  std::string Row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

// Microseconds in seven places.
std::string MicrosecondsText(double seconds);
// "1.10 - 1.20"
std::string SpreadText(const Quartiles& quartiles, int digits);

// At once.
void Print(const std::string& text, FILE* output = stdout);

// A relative path counts from the folder in which the user called `bazel run`, which changes it; else from this one. "-" is stdout.
// UNAVAILABLE names the file that cannot be written. What is not UTF-8 (in a fact) is replaced.
absl::Status WriteJson(const Json& json, const std::string& path);

// "8", "64K", "25M", "1G": powers of 1024, as nccl-tests reads them. INVALID_ARGUMENT for anything else, and for what does not fit in 63
// bits.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

// begin, begin x factor, ... as far as `end`, which may be the last one. INVALID_ARGUMENT for an end before the begin and for a factor
// below 2. A begin of 0 is followed by 1.
absl::StatusOr<std::vector<int64_t>> SweepSizes(absl::string_view begin, absl::string_view end, int64_t factor);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_REPORT_H_
