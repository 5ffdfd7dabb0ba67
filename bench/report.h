// What a benchmark found out, as data: for the tables and for JSON.

#ifndef BENCH_REPORT_H_
#define BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "bench/exercise.h"
#include "bench/measure.h"
#include "bench/statistics.h"
#include "bench/subject.h"

namespace lockstep {
namespace bench {

// One exercise of one size.
struct Row {
  Exercise exercise;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  Rank root;
  SubjectSize size;
  Measurement out_of_place;
  absl::optional<Measurement> in_place;  // none for a barrier and messages
};

// All-reduce beside bare sockets, or a bare provider, that move the same bytes. Ratios are of round by round; below 1 Lockstep is faster.
struct LimitRow {
  int64_t bytes = 0;
  double lockstep_seconds = 0;
  double exchange_seconds = 0;  // both ways at once
  Quartiles exchange_ratio;
  // A message one way, half of a ping-pong: small sizes only.
  absl::optional<double> one_way_seconds;
  Quartiles one_way_ratio;
  // A message one way by fi_pingpong, over libfabric and where that is installed.
  absl::optional<double> pingpong_seconds;
  Quartiles pingpong_ratio;
};

struct Report {
  int ranks = 1;
  std::vector<std::pair<std::string, std::string>> facts;  // "cpu", "kernel", ...: what the numbers depend on
  std::vector<Row> rows;
  std::vector<LimitRow> limits;
};

uint64_t WrongElements(const Report& report);

// The mean over all rows with bytes, in and out of place, in GB/s.
double AverageBusBandwidth(const Report& report);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_REPORT_H_
