// What bench:overlap measured, as data and as a report; and the lower bound of a step whose communication overlaps with computation.

#ifndef BENCH_OVERLAP_REPORT_H_
#define BENCH_OVERLAP_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "bench/overlap/replay.h"
#include "bench/report.h"

namespace lockstep::bench {

// One bucket, measured with nothing else going on.
struct BucketCost {
  double ready_seconds = 0;  // of computation alone: from the step's begin to the bucket's last gradient
  double wire_seconds = 0;   // of its all-reduce alone
  // That its all-reduce takes from the core that computes; 0 where computation is elsewhere.
  double processor_seconds = 0;
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
  std::vector<BucketCost> costs;  // by round, in ordinary memory
};

// A way to keep gradients: what it is called, and what gradients and a reducer added to rank 0's memory, once it has gone through two
// steps; what n ranks share counts for 1/n.
struct OverlapMode {
  std::string name;
  int64_t memory_bytes = 0;
};

// Seconds of one step, each measured in this round and of the slowest rank.
struct OverlapRound {
  struct Communication {
    double alone = 0;  // all buckets, each alone
    double ideal = 0;  // of the buckets' costs in this memory
  };
  struct Step {
    double serial = 0;      // without overlap
    double overlapped = 0;  // with it
  };

  double compute = 0;
  std::vector<Communication> communication;  // in ordinary memory and, on the host, in the allocator's
  std::vector<Step> steps;                   // by mode
  // One all-reduce of all gradients, as a list of tensors and as one flat vector in ordinary memory. 0 on a GPU.
  double list = 0;
  double flat = 0;
};

struct OverlapReport {
  std::vector<OverlapMode> modes;
  std::vector<OverlapBucket> buckets;  // of the first mode
  std::vector<OverlapRound> rounds;
  ReducerOverhead overhead;
  int64_t gradient_bytes = 0;  // of one copy
};

// Adds to the report: buckets, times and ratios with medians and quartiles over rounds, the reducer's own time, memory. The rows are
//   {"bucket": 0, "bytes": 8196096, "parameters": 1, "ready_ms": 9.1, "communication_ms": 1.2, "processor_ms": 0.9}
//   {"name": "ideal", "step_ms": {spread}, "rounds_ms": [20.0, ...]}
//   {"name": "default: with overlap", "step_ms": {spread}, "rounds_ms": [22.0, ...]}
//   {"name": "default: step / ideal", "ratio": {spread}}                       a step with overlap
//   {"name": "default / views", "ratio": {spread}}                             the same, of two modes
//   {"name": "the reducer itself", "mark_ready_us": 80.5, "step_us": 120.1}    of all parameters
//   {"name": "default: memory", "gradient_bytes": ..., "proportional_bytes": ...}
void Show(const OverlapReport& found, Report* report);

}  // namespace lockstep::bench

#endif  // BENCH_OVERLAP_REPORT_H_
