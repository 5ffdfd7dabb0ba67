// What bench:overlap found out, as data, for people and for scripts.

#ifndef BENCH_OVERLAP_REPORT_H_
#define BENCH_OVERLAP_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/overlap/overhead.h"
#include "bench/overlap/plan.h"
#include "bench/report.h"

namespace lockstep {
namespace bench {

struct OverlapBucket {
  int64_t bytes = 0;
  int parameters = 0;
  BucketCost cost;  // medians of all rounds
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

// On rank 0, once there are gradients and a reducer which has gone through two steps, less what there was before.
struct OverlapMemory {
  int64_t gradient_bytes = 0;      // of one copy
  int64_t resident_bytes_max = 0;  // at any time; memory of other ranks that this one has before it counts in full
  int64_t proportional_bytes = 0;  // then; what n ranks share counts for 1/n
};

struct OverlapReport {
  int ranks = 0;
  int parameters = 0;
  Facts facts;  // "cpu", "model", ...: what the numbers depend on
  std::vector<OverlapBucket> buckets;
  std::vector<OverlapRound> rounds;
  ReducerOverhead overhead;
  OverlapMemory memory;
};

// Buckets, times and ratios with medians and quartiles over rounds, the reducer's own time, memory.
std::string OverlapText(const OverlapReport& report);

// {"facts": {"cpu": ..., ...}, "ranks": 2, "parameters": 161,
//  "buckets": [{"bytes": 8196096, "parameters": 1, "ready_ms": 9.1, "communication_ms": 1.2, "processor_ms": 0.9}],
//  "rounds": [{"compute_ms": 20.1, "communication_ms": 13.4, "serial_ms": 34.0, "overlapped_ms": 22.0,
//              "ideal_ms": 21.5}],
//  "overhead": {"mark_ready_us": 80.5, "step_us": 120.1},                of all parameters
//  "memory": {"gradient_bytes": ..., "resident_bytes_max": ..., "proportional_bytes": ...}}
Json OverlapJson(const OverlapReport& report);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_REPORT_H_
