// What the reducer itself costs, everything but moving bytes; and how much memory this process has, as the kernel counts it.

#ifndef BENCH_OVERLAP_OVERHEAD_H_
#define BENCH_OVERLAP_OVERHEAD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reducer/plan/bucket_plan.h"

namespace lockstep {
namespace bench {

// Medians over steps, in seconds.
struct ReducerOverhead {
  int buckets = 0;
  double mark_ready_seconds = 0;  // all calls of MarkReady in a step together
  double step_seconds = 0;        // BeginBackward, those, and EndBackward, with nothing computed in between
};

// Of a reducer in a world of one, with as many parameters and buckets, and as many parameters in each bucket, as
// `plan`, but one float each: there is nothing to copy, and an all-reduce is a call that returns. What is left are
// checks, counts, and handing each bucket from thread to thread.
absl::StatusOr<ReducerOverhead> MeasureReducerOverhead(const BucketPlan& plan, int steps);

struct ProcessMemory {
  int64_t resident_bytes = 0;       // VmRSS: pages that it has touched, those of its peers that it maps among them
  int64_t peak_resident_bytes = 0;  // VmHWM: the most of that since ResetPeakMemory
  int64_t proportional_bytes = 0;   // Pss: a page that n processes have counts for 1/n
};

// Of proc_pid_status(5) and smaps_rollup. UNAVAILABLE where the kernel does not tell.
absl::StatusOr<ProcessMemory> MeasureProcessMemory();
absl::Status ResetPeakMemory();

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_OVERHEAD_H_
