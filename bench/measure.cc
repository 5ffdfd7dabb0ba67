#include "bench/measure.h"

#include <algorithm>
#include <cstddef>

#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int64_t kIterationsMin = 2;
constexpr int64_t kIterationsMax = 100'000;

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

absl::StatusOr<int64_t> WarmUp(const ProcessGroup& group, const MeasureOptions& options, Calls calls) {
  LOCKSTEP_RETURN_IF_ERROR(calls(options.warmup));
  if (options.iterations > 0) return options.iterations;
  // Three calls alone are far from what many back to back come to, so the second estimate is made from more.
  int64_t iterations = kIterationsMin + 1;
  for (int estimate = 0; estimate < 2; ++estimate) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(group, iterations, calls));
    const double round_seconds = std::chrono::duration<double>(options.round_time).count();
    const double fitting = round_seconds / std::max(seconds, 1e-9) / (estimate == 0 ? 10 : 1);
    iterations = std::clamp(static_cast<int64_t>(fitting), kIterationsMin, kIterationsMax);
    if (fitting < kIterationsMin) break;
  }
  return iterations;
}

absl::StatusOr<double> TimeRound(const ProcessGroup& group, int64_t iterations, Calls calls) {
  LOCKSTEP_RETURN_IF_ERROR(group.Barrier());
  const auto begin = std::chrono::steady_clock::now();
  LOCKSTEP_RETURN_IF_ERROR(calls(iterations));
  return group.Largest(SecondsSince(begin) / static_cast<double>(iterations));
}

}  // namespace bench
}  // namespace lockstep
