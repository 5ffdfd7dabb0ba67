// What bench:overlap measured, as data and as a report; and the lower bound of a step whose communication overlaps with computation.

#ifndef BENCH_OVERLAP_REPORT_H_
#define BENCH_OVERLAP_REPORT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "bench/overlap/replay.h"
#include "bench/report.h"

namespace lockstep {
namespace bench {

// One bucket, measured with nothing else going on.
struct BucketCost {
  double ready_seconds = 0;  // of computation alone: from the step's begin to the bucket's last gradient
  double wire_seconds = 0;   // of its all-reduce alone
  double processor_seconds =
      0;  // that its all-reduce takes from the core that computes; 0 where computation is elsewhere
};

// The least that a step can take, the last bucket's all-reduce included. Buckets go over one wire in their order. Each starts when its
// gradients are ready and the one before is through. Where both share a core, computation meanwhile gets what the bucket's all-reduce
// leaves of it. No order of the same work on that core ends earlier: communication put off is wire time at the end, and a bucket takes at
// least its processor time.
//
// `compute_seconds`: of the whole step, not less than any bucket's ready time. Not included: copies into and out of buckets, hand-overs
// between threads, contention for memory, and what sending one bucket right behind another saves (a link that has not fallen idle). The
// last one lets a step end a little before its ideal.
double IdealStepSeconds(double compute_seconds, absl::Span<const BucketCost> buckets);

struct OverlapBucket {
  int64_t bytes = 0;
  int parameters = 0;
  std::vector<BucketCost> costs;  // by round
};

// Seconds of one step, each measured in this round and of the slowest rank.
struct OverlapRound {
  double compute = 0;
  double communication = 0;  // all buckets, each alone
  double serial = 0;         // a step without overlap
  double overlapped = 0;     // a step with it
  double ideal = 0;          // of this round's bucket costs

  double exposed() const { return overlapped - compute; }
};

struct OverlapReport {
  std::vector<OverlapBucket> buckets;
  std::vector<OverlapRound> rounds;
  ReducerOverhead overhead;
  int64_t gradient_bytes = 0;  // of one copy
  // What gradients and a reducer added to rank 0's memory, once it has gone through two steps; what n ranks share counts for 1/n.
  int64_t memory_bytes = 0;
};

// Adds to the report: buckets, times and ratios with medians and quartiles over rounds, the reducer's own time, memory. The rows are
//   {"bucket": 0, "bytes": 8196096, "parameters": 1, "ready_ms": 9.1, "communication_ms": 1.2, "processor_ms": 0.9}
//   {"name": "with overlap", "step_ms": {spread}, "rounds_ms": [22.0, ...]}
//   {"name": "with overlap / ideal", "ratio": {spread}}
//   {"name": "the reducer itself", "mark_ready_us": 80.5, "step_us": 120.1}    of all parameters
//   {"name": "memory", "gradient_bytes": ..., "proportional_bytes": ...}
void Show(const OverlapReport& found, Report* report);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_REPORT_H_
