#include "bench/overlap/report.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"

namespace lockstep {
namespace bench {
namespace {

using Round = OverlapRound;

constexpr double kMsPerSecond = 1e3;
constexpr double kUsPerSecond = 1e6;

void ShowBuckets(const std::vector<OverlapBucket>& buckets, Report* report) {
  report->Begin("#\n", {{8, "bucket", "", "/bucket"},
                        {12, "size", "(B)", "/bytes"},
                        {10, "parameters", "", "/parameters"},
                        {12, "ready", "(ms)", "/ready_ms", 3},
                        {16, "all-reduce alone", "(ms)", "/communication_ms", 3},
                        {21, "of it, processor time", "(ms)", "/processor_ms", 3}});
  for (size_t b = 0; b < buckets.size(); ++b) {
    const auto median_ms = [&](double BucketCost::*part) {
      std::vector<double> values;
      for (const BucketCost& cost : buckets[b].costs) values.push_back(cost.*part * kMsPerSecond);
      return Median(values);
    };
    report->AddRow({{"bucket", b},
                    {"bytes", buckets[b].bytes},
                    {"parameters", buckets[b].parameters},
                    {"ready_ms", median_ms(&BucketCost::ready_seconds)},
                    {"communication_ms", median_ms(&BucketCost::wire_seconds)},
                    {"processor_ms", median_ms(&BucketCost::processor_seconds)}});
  }
}

void ShowRounds(const std::vector<Round>& rounds, Report* report) {
  using Value = double (*)(const Round&);
  const auto of_rounds = [&rounds](Value value, double factor) {
    std::vector<double> values;
    for (const Round& round : rounds) values.push_back(value(round) * factor);
    return values;
  };
  const auto columns = [](const char* heading, const std::string& unit, const std::string& at) {
    return Columns{
        {-24, heading, "", "/name"}, {11, "median" + unit, "", at + "/median", 3}, {17, "quartiles", "", at, 3}};
  };
  report->Begin("#\n", columns("of a step", " (ms)", "/step_ms"));
  for (const auto& [name, value] : std::vector<std::pair<const char*, Value>>{
           {"compute only", [](const Round& round) { return round.compute; }},
           {"communication only", [](const Round& round) { return round.communication; }},
           {"without overlap", [](const Round& round) { return round.serial; }},
           {"with overlap", [](const Round& round) { return round.overlapped; }},
           {"exposed communication", [](const Round& round) { return round.exposed(); }},
           {"ideal", [](const Round& round) { return round.ideal; }}}) {
    const std::vector<double> ms = of_rounds(value, kMsPerSecond);
    report->AddRow({{"name", name}, {"step_ms", ToJson(QuartilesOf(ms))}, {"rounds_ms", ms}});
  }
  report->Begin("#\n", columns("round by round", "", "/ratio"));
  for (const auto& [name, value] : std::vector<std::pair<const char*, Value>>{
           {"with overlap / ideal", [](const Round& round) { return round.overlapped / round.ideal; }},
           {"without / with overlap", [](const Round& round) { return round.serial / round.overlapped; }}}) {
    report->AddRow({{"name", name}, {"ratio", ToJson(QuartilesOf(of_rounds(value, 1)))}});
  }
}

void ShowOverhead(const OverlapReport& found, Report* report) {
  std::vector<double> steps;
  for (const Round& round : found.rounds) steps.push_back(round.overlapped);
  double parameters = 0;
  for (const OverlapBucket& bucket : found.buckets) parameters += bucket.parameters;
  const double step = Median(steps);
  const double step_us = found.overhead.step_seconds * kUsPerSecond;
  const double mark_ready_us = found.overhead.mark_ready_seconds * kUsPerSecond;
  report->Print(absl::StrFormat(
      "#\n# the reducer itself, with nothing to move: %.3f us a parameter in mark_ready, %.3f us with begin and end; a "
      "step %.1f us, %.2f %% of one with overlap\n",
      mark_ready_us / parameters, step_us / parameters, step_us,
      step > 0 ? 100 * found.overhead.step_seconds / step : 0));
  report->AddRow({{"name", "the reducer itself"}, {"mark_ready_us", mark_ready_us}, {"step_us", step_us}},
                 /*printed=*/false);
}

void ShowMemory(const OverlapReport& found, Report* report) {
  const auto bytes = static_cast<double>(found.memory_bytes);
  report->Print(absl::StrFormat(
      "# memory of a rank for gradients and reducer: %.1f MiB (%.2f copies of the gradients) when shared pages are "
      "divided by those who share them\n",
      bytes / (1 << 20), bytes / static_cast<double>(found.gradient_bytes)));
  report->AddRow(
      {{"name", "memory"}, {"gradient_bytes", found.gradient_bytes}, {"proportional_bytes", found.memory_bytes}},
      /*printed=*/false);
}

}  // namespace

double IdealStepSeconds(double compute_seconds, absl::Span<const BucketCost> buckets) {
  double now = 0;
  double computed = 0;  // seconds of computation that are done by now
  for (const BucketCost& bucket : buckets) {
    const double awaited = std::max(0.0, bucket.ready_seconds - computed);
    computed += awaited;
    now += awaited;
    now += bucket.wire_seconds;
    // One that keeps more than a core busy leaves nothing of it.
    computed += std::max(0.0, bucket.wire_seconds - bucket.processor_seconds);
    computed = std::min(computed, compute_seconds);
  }
  return now + compute_seconds - computed;
}

void Show(const OverlapReport& found, Report* report) {
  ShowBuckets(found.buckets, report);
  ShowRounds(found.rounds, report);
  ShowOverhead(found, report);
  ShowMemory(found, report);
}

}  // namespace bench
}  // namespace lockstep
