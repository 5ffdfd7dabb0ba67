#include "bench/measure.h"

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "bench/statistics.h"

namespace lockstep {
namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kIterationsMin = 2;
constexpr int64_t kIterationsMax = 100'000;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

absl::StatusOr<int64_t> WarmUp(const Team& team, const MeasureOptions& options, Calls calls) {
  LOCKSTEP_RETURN_IF_ERROR(calls(options.warmup));
  if (options.iterations > 0) return options.iterations;
  // Three calls alone are far from what many back to back come to, so the second estimate is made from more.
  int64_t iterations = kIterationsMin + 1;
  for (int estimate = 0; estimate < 2; ++estimate) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(team, iterations, calls));
    const double round_seconds = std::chrono::duration<double>(options.round_time).count();
    const double fitting = round_seconds / std::max(seconds, 1e-9) / (estimate == 0 ? 10 : 1);
    iterations = std::clamp(static_cast<int64_t>(fitting), kIterationsMin, kIterationsMax);
    if (fitting < kIterationsMin) break;
  }
  return iterations;
}

absl::StatusOr<double> TimeRound(const Team& team, int64_t iterations, Calls calls) {
  LOCKSTEP_RETURN_IF_ERROR(team.Barrier());
  const Clock::time_point begin = Clock::now();
  LOCKSTEP_RETURN_IF_ERROR(calls(iterations));
  return team.Largest(SecondsSince(begin) / static_cast<double>(iterations));
}

absl::StatusOr<Measurement> Measure(const Team& team, const MeasureOptions& options, Subject* subject) {
  const auto calls = [subject](int64_t count) { return subject->Run(count); };
  Measurement measurement;
  subject->Fill();
  LOCKSTEP_ASSIGN_OR_RETURN(measurement.iterations, WarmUp(team, options, calls));
  std::vector<double> rounds;
  for (int round = 0; round < options.rounds; ++round) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(team, measurement.iterations, calls));
    rounds.push_back(seconds);
  }
  measurement.seconds = Median(rounds);
  subject->Fill();
  LOCKSTEP_RETURN_IF_ERROR(subject->Run(1));
  LOCKSTEP_ASSIGN_OR_RETURN(measurement.wrong, team.Sum(subject->CountWrong()));
  return measurement;
}

}  // namespace bench
}  // namespace lockstep
