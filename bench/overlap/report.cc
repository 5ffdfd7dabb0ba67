#include "bench/overlap/report.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lockstep::bench {
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

void ShowRounds(const OverlapReport& found, Report* report) {
  using Value = absl::FunctionRef<double(const Round&)>;
  const auto of_rounds = [&found](Value value, double factor) {
    std::vector<double> values;
    for (const Round& round : found.rounds) values.push_back(value(round) * factor);
    return values;
  };
  const auto add_times = [&](const std::string& name, Value value) {
    const std::vector<double> ms = of_rounds(value, kMsPerSecond);
    report->AddRow({{"name", name}, {"step_ms", ToJson(QuartilesOf(ms))}, {"rounds_ms", ms}});
  };
  const auto add_ratio = [&](const std::string& name, Value value) {
    report->AddRow({{"name", name}, {"ratio", ToJson(QuartilesOf(of_rounds(value, 1)))}});
  };
  const auto columns = [](const char* heading, const std::string& unit, const std::string& at) {
    return Columns{
        {-48, heading, "", "/name"}, {11, "median" + unit, "", at + "/median", 3}, {17, "quartiles", "", at, 3}};
  };
  // By memory.
  constexpr const char* kAlone[] = {"communication only", "communication only in the allocator's memory"};
  constexpr const char* kIdeal[] = {"ideal", "ideal of the allocator's memory"};
  const size_t memories = found.rounds.front().communication.size();

  report->Begin("#\n", columns("of a step", " (ms)", "/step_ms"));
  add_times("compute only", [](const Round& round) { return round.compute; });
  for (size_t i = 0; i < memories; ++i) {
    add_times(kAlone[i], [i](const Round& round) { return round.communication[i].alone; });
    add_times(kIdeal[i], [i](const Round& round) { return round.communication[i].ideal; });
  }
  for (size_t m = 0; m < found.modes.size(); ++m) {
    const std::string& mode = found.modes[m].name;
    add_times(mode + ": without overlap", [m](const Round& round) { return round.steps[m].serial; });
    add_times(mode + ": with overlap", [m](const Round& round) { return round.steps[m].overlapped; });
    add_times(mode + ": exposed communication",
              [m](const Round& round) { return round.steps[m].overlapped - round.compute; });
  }

  const bool has_list = found.rounds.front().list > 0;
  if (has_list) {
    add_times("one all-reduce of all gradients", [](const Round& round) { return round.list; });
    add_times("the same of one flat vector", [](const Round& round) { return round.flat; });
  }

  size_t views = 0;
  while (views < found.modes.size() && found.modes[views].name != "views") ++views;
  report->Begin("#\n", columns("round by round", "", "/ratio"));
  for (size_t m = 0; m < found.modes.size(); ++m) {
    const std::string& mode = found.modes[m].name;
    for (size_t i = 0; i < memories; ++i) {
      add_ratio(absl::StrCat(mode, ": step / ", kIdeal[i]),
                [m, i](const Round& round) { return round.steps[m].overlapped / round.communication[i].ideal; });
    }
    add_ratio(mode + ": without / with overlap",
              [m](const Round& round) { return round.steps[m].serial / round.steps[m].overlapped; });
    if (views == found.modes.size() || views == m) continue;
    add_ratio(mode + " / views",
              [m, views](const Round& round) { return round.steps[m].overlapped / round.steps[views].overlapped; });
  }
  if (has_list)
    add_ratio("all gradients / one flat vector", [](const Round& round) { return round.list / round.flat; });
}

void ShowOverhead(const OverlapReport& found, Report* report) {
  std::vector<double> steps;
  for (const Round& round : found.rounds) steps.push_back(round.steps.front().overlapped);
  double parameters = 0;
  for (const OverlapBucket& bucket : found.buckets) parameters += bucket.parameters;
  const double step = Median(steps);
  const double step_us = found.overhead.step_seconds * kUsPerSecond;
  const double mark_ready_us = found.overhead.mark_ready_seconds * kUsPerSecond;
  report->Print(absl::StrFormat(
      "#\n# the reducer itself, with nothing to move: %.3f us a parameter in mark_ready, %.3f us with begin and end; a "
      "step %.1f us, %.2f %% of %s with overlap\n",
      mark_ready_us / parameters, step_us / parameters, step_us,
      step > 0 ? 100 * found.overhead.step_seconds / step : 0, found.modes.front().name));
  report->AddRow({{"name", "the reducer itself"}, {"mark_ready_us", mark_ready_us}, {"step_us", step_us}},
                 /*printed=*/false);
}

void ShowMemory(const OverlapReport& found, Report* report) {
  report->Print(
      "# memory of a rank for gradients and reducer, when shared pages are divided by those who share them:\n");
  for (const OverlapMode& mode : found.modes) {
    const auto bytes = static_cast<double>(mode.memory_bytes);
    report->Print(absl::StrFormat("#   %s: %.1f MiB, %.2f copies of the gradients\n", mode.name, bytes / (1 << 20),
                                  bytes / static_cast<double>(found.gradient_bytes)));
    report->AddRow({{"name", mode.name + ": memory"},
                    {"gradient_bytes", found.gradient_bytes},
                    {"proportional_bytes", mode.memory_bytes}},
                   /*printed=*/false);
  }
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
  ShowRounds(found, report);
  ShowOverhead(found, report);
  ShowMemory(found, report);
}

}  // namespace lockstep::bench
