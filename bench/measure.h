// The measuring loop: how long one call takes on all ranks of a process group, and medians and quartiles of a few measurements.
//
// As nccl-tests does it, a round is many calls back to back on every rank, behind a barrier, and its time is that of the slowest rank
// divided by the number of calls. Here there are several rounds, of which the median counts: on a machine that others use too, a mean
// tells about them.

#ifndef BENCH_MEASURE_H_
#define BENCH_MEASURE_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/ranks.h"

namespace lockstep {
namespace bench {

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};

// Between two measurements, linearly. Zeros for none.
Quartiles QuartilesOf(std::vector<double> values);
double Median(const std::vector<double>& values);

double SecondsSince(std::chrono::steady_clock::time_point begin);

struct MeasureOptions {
  int64_t iterations = 0;  // calls in a round; 0: as many as fill round_time
  int64_t warmup = 5;      // calls before the first round
  int rounds = 5;
  std::chrono::milliseconds round_time{20};
};

// Makes this many calls back to back, as its part in what all ranks do.
using Calls = absl::FunctionRef<absl::Status(int64_t calls)>;

// Warms up, and returns the number of calls for a round, equal on all ranks.
absl::StatusOr<int64_t> WarmUp(const ProcessGroup& group, const MeasureOptions& options, Calls calls);

// Seconds per call in one round, equal on all ranks.
absl::StatusOr<double> TimeRound(const ProcessGroup& group, int64_t iterations, Calls calls);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_MEASURE_H_
