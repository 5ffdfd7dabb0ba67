#include "bench/overlap/report.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/statistics.h"

namespace lockstep {
namespace bench {
namespace {

using Json = nlohmann::ordered_json;
using OfRound = absl::FunctionRef<double(const OverlapRound&)>;

constexpr double kMsPerSecond = 1e3;
constexpr double kUsPerSecond = 1e6;

Quartiles OverRounds(const OverlapReport& report, OfRound value) {
  std::vector<double> values;
  for (const OverlapRound& round : report.rounds) values.push_back(value(round));
  return QuartilesOf(values);
}

std::string TimeRow(const OverlapReport& report, const char* name, OfRound seconds) {
  const Quartiles ms = OverRounds(report, [&](const OverlapRound& round) { return seconds(round) * kMsPerSecond; });
  return absl::StrFormat("%-24s  %11.3f  %9.3f - %.3f\n", name, ms.median, ms.low, ms.high);
}

std::string RatioRow(const OverlapReport& report, const char* name, OfRound ratio) {
  const Quartiles of_rounds = OverRounds(report, ratio);
  return absl::StrFormat("%-24s  %11.3f  %9.3f - %.3f\n", name, of_rounds.median, of_rounds.low, of_rounds.high);
}

std::string BucketsText(const OverlapReport& report) {
  std::string text = absl::StrFormat("#\n#%7s  %12s  %10s  %12s  %16s  %21s\n", "bucket", "size", "parameters", "ready",
                                     "all-reduce alone", "of it, processor time");
  absl::StrAppendFormat(&text, "#%7s  %12s  %10s  %12s  %16s  %21s\n", "", "(B)", "", "(ms)", "(ms)", "(ms)");
  for (size_t b = 0; b < report.buckets.size(); ++b) {
    const OverlapBucket& bucket = report.buckets[b];
    absl::StrAppendFormat(&text, "%8d  %12d  %10d  %12.3f  %16.3f  %21.3f\n", b, bucket.bytes, bucket.parameters,
                          bucket.cost.ready_seconds * kMsPerSecond, bucket.cost.wire_seconds * kMsPerSecond,
                          bucket.cost.processor_seconds * kMsPerSecond);
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

std::string OverlapFactsText(const OverlapReport& report) {
  std::string text;
  for (const auto& fact : report.facts) absl::StrAppend(&text, "# ", fact.first, ": ", fact.second, "\n");
  return text;
}

std::string OverlapText(const OverlapReport& report) {
  std::string text = BucketsText(report);
  absl::StrAppendFormat(&text, "#\n#%-23s  %11s  %15s\n", " of a step", "median (ms)", "quartiles");
  absl::StrAppend(&text, TimeRow(report, "compute only", [](const OverlapRound& round) { return round.compute; }));
  absl::StrAppend(&text,
                  TimeRow(report, "communication only", [](const OverlapRound& round) { return round.communication; }));
  absl::StrAppend(&text, TimeRow(report, "without overlap", [](const OverlapRound& round) { return round.serial; }));
  absl::StrAppend(&text, TimeRow(report, "with overlap", [](const OverlapRound& round) { return round.overlapped; }));
  absl::StrAppend(&text,
                  TimeRow(report, "exposed communication", [](const OverlapRound& round) { return round.exposed(); }));
  absl::StrAppend(&text, TimeRow(report, "ideal", [](const OverlapRound& round) { return round.ideal; }));
  absl::StrAppendFormat(&text, "#\n#%-23s  %11s  %15s\n", " round by round", "median", "quartiles");
  absl::StrAppend(&text, RatioRow(report, "with overlap / ideal",
                                  [](const OverlapRound& round) { return round.overlapped / round.ideal; }));
  absl::StrAppend(&text, RatioRow(report, "without / with overlap",
                                  [](const OverlapRound& round) { return round.serial / round.overlapped; }));
  return absl::StrCat(text, OverheadText(report), MemoryText(report.memory));
}

std::string OverlapJson(const OverlapReport& report) {
  Json json = {{"facts", Json::object()},
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
  for (const auto& fact : report.facts) json["facts"][fact.first] = fact.second;
  for (const OverlapBucket& bucket : report.buckets) json["buckets"].push_back(ToJson(bucket));
  for (const OverlapRound& round : report.rounds) json["rounds"].push_back(ToJson(round));
  // What is not UTF-8 (in a fact) is replaced rather than thrown about.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bench
}  // namespace lockstep
