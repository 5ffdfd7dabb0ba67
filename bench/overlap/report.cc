#include "bench/overlap/report.h"

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/measure.h"

namespace lockstep {
namespace bench {
namespace {

using OfRound = absl::FunctionRef<double(const OverlapRound&)>;

constexpr double kMsPerSecond = 1e3;
constexpr double kUsPerSecond = 1e6;

Quartiles OverRounds(const OverlapReport& report, OfRound value) {
  std::vector<double> values;
  for (const OverlapRound& round : report.rounds) values.push_back(value(round));
  return QuartilesOf(values);
}

// Medians and quartiles over rounds.
std::string RoundsText(const OverlapReport& report) {
  using Round = OverlapRound;
  struct Row {
    const char* name;
    double (*value)(const Round&);
  };
  const auto rows_of = [&](const char* heading, const char* unit, double factor, const std::vector<Row>& rows) {
    const Table table({{-24, heading, ""}, {11, absl::StrCat("median", unit), ""}, {17, "quartiles", ""}});
    std::string text = "#\n" + table.Heading();
    for (const Row& row : rows) {
      const Quartiles found = OverRounds(report, [&](const Round& round) { return row.value(round) * factor; });
      absl::StrAppend(&text, table.Row({row.name, absl::StrFormat("%.3f", found.median), SpreadText(found, 3)}));
    }
    return text;
  };
  return rows_of("of a step", " (ms)", kMsPerSecond,
                 {{"compute only", [](const Round& round) { return round.compute; }},
                  {"communication only", [](const Round& round) { return round.communication; }},
                  {"without overlap", [](const Round& round) { return round.serial; }},
                  {"with overlap", [](const Round& round) { return round.overlapped; }},
                  {"exposed communication", [](const Round& round) { return round.exposed(); }},
                  {"ideal", [](const Round& round) { return round.ideal; }}}) +
         rows_of("round by round", "", 1,
                 {{"with overlap / ideal", [](const Round& round) { return round.overlapped / round.ideal; }},
                  {"without / with overlap", [](const Round& round) { return round.serial / round.overlapped; }}});
}

std::string BucketsText(const OverlapReport& report) {
  const Table table({{8, "bucket", ""},
                     {12, "size", "(B)"},
                     {10, "parameters", ""},
                     {12, "ready", "(ms)"},
                     {16, "all-reduce alone", "(ms)"},
                     {21, "of it, processor time", "(ms)"}});
  std::string text = "#\n" + table.Heading();
  const auto ms = [](double seconds) { return absl::StrFormat("%.3f", seconds * kMsPerSecond); };
  for (size_t b = 0; b < report.buckets.size(); ++b) {
    const OverlapBucket& bucket = report.buckets[b];
    absl::StrAppend(&text, table.Row({absl::StrCat(b), absl::StrCat(bucket.bytes), absl::StrCat(bucket.parameters),
                                      ms(bucket.cost.ready_seconds), ms(bucket.cost.wire_seconds),
                                      ms(bucket.cost.processor_seconds)}));
  }
  return text;
}

std::string OverheadText(const OverlapReport& report) {
  const double step = OverRounds(report, [](const OverlapRound& round) { return round.overlapped; }).median;
  const ReducerOverhead& overhead = report.overhead;
  return absl::StrFormat(
      "#\n# the reducer itself, with nothing to move: %.3f us a parameter in mark_ready, %.3f us with begin and end; a "
      "step %.1f us, %.2f %% of one with overlap\n",
      overhead.mark_ready_seconds * kUsPerSecond / report.parameters,
      overhead.step_seconds * kUsPerSecond / report.parameters, overhead.step_seconds * kUsPerSecond,
      step > 0 ? 100 * overhead.step_seconds / step : 0);
}

std::string MemoryText(const OverlapMemory& memory) {
  const auto copies = [&](int64_t bytes) {
    return absl::StrFormat("%.1f MiB (%.2f copies of the gradients)", static_cast<double>(bytes) / (1 << 20),
                           static_cast<double>(bytes) / static_cast<double>(memory.gradient_bytes));
  };
  return absl::StrCat("# memory of a rank for gradients and reducer: ", copies(memory.proportional_bytes),
                      " when shared pages are divided by those who share them; ", copies(memory.resident_bytes_max),
                      " resident at most, with what it sees of other ranks'\n");
}

Json ToJson(const OverlapBucket& bucket) {
  return {{"bytes", bucket.bytes},
          {"parameters", bucket.parameters},
          {"ready_ms", bucket.cost.ready_seconds * kMsPerSecond},
          {"communication_ms", bucket.cost.wire_seconds * kMsPerSecond},
          {"processor_ms", bucket.cost.processor_seconds * kMsPerSecond}};
}

Json ToJson(const OverlapRound& round) {
  return {{"compute_ms", round.compute * kMsPerSecond},
          {"communication_ms", round.communication * kMsPerSecond},
          {"serial_ms", round.serial * kMsPerSecond},
          {"overlapped_ms", round.overlapped * kMsPerSecond},
          {"ideal_ms", round.ideal * kMsPerSecond}};
}

}  // namespace

std::string OverlapText(const OverlapReport& report) {
  return absl::StrCat(BucketsText(report), RoundsText(report), OverheadText(report), MemoryText(report.memory));
}

Json OverlapJson(const OverlapReport& report) {
  Json json = {{"facts", ToJson(report.facts)},
               {"ranks", report.ranks},
               {"parameters", report.parameters},
               {"buckets", Json::array()},
               {"rounds", Json::array()},
               {"overhead",
                {{"mark_ready_us", report.overhead.mark_ready_seconds * kUsPerSecond},
                 {"step_us", report.overhead.step_seconds * kUsPerSecond}}},
               {"memory",
                {{"gradient_bytes", report.memory.gradient_bytes},
                 {"resident_bytes_max", report.memory.resident_bytes_max},
                 {"proportional_bytes", report.memory.proportional_bytes}}}};
  for (const OverlapBucket& bucket : report.buckets) json["buckets"].push_back(ToJson(bucket));
  for (const OverlapRound& round : report.rounds) json["rounds"].push_back(ToJson(round));
  return json;
}

}  // namespace bench
}  // namespace lockstep
