// What the reducer itself costs: everything but moving bytes.

#ifndef BENCH_OVERLAP_REDUCER_OVERHEAD_H_
#define BENCH_OVERLAP_REDUCER_OVERHEAD_H_

#include "absl/status/statusor.h"
#include "reducer/bucket_plan.h"

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

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_REDUCER_OVERHEAD_H_
