// Where the time of a synchronised backward went. Pure functions of its record, by the host's clock.
//
//   bucket 0      |----------|          on the wire
//   bucket 1           |----------|
//   backward  |------------|            from BeginBackward to the call of EndBackward
//                 [ hidden ][ exposed]

#ifndef REDUCER_REPORT_STATISTICS_H_
#define REDUCER_REPORT_STATISTICS_H_

#include <cstddef>
#include <cstdint>

#include "reducer/report/step_record.h"

namespace lockstep {

// Of the last synchronised backward that ended.
struct ReducerStatistics {
  int64_t steps = 0;            // synchronised backwards so far
  double backward_ms = 0;       // BeginBackward to the call of EndBackward
  double communication_ms = 0;  // some bucket was being all-reduced
  double exposed_ms = 0;        // of that, after EndBackward was called
  int64_t bytes_reduced = 0;
  int buckets = 0;
  int buckets_launched_in_backward = 0;

  double hidden_ms() const { return communication_ms - exposed_ms; }
};

// All zero for an empty record.
ReducerStatistics Statistics(const StepRecord& record);

// Of one bucket, in milliseconds since BeginBackward.
struct BucketStatistics {
  static constexpr double kNotRecorded = -1;

  double ready_ms = kNotRecorded;
  double launched_ms = kNotRecorded;
  double wire_begin_ms = kNotRecorded;
  double wire_end_ms = kNotRecorded;
  double done_ms = kNotRecorded;  // the averages are in the gradients, and stepped with where the reducer does that
  double communication_ms = 0;    // between wire_begin_ms and wire_end_ms
  double exposed_ms = 0;          // of that, after EndBackward was called
  int64_t bytes = 0;

  double hidden_ms() const { return communication_ms - exposed_ms; }
};

BucketStatistics Statistics(const StepRecord& record, size_t bucket);

// Milliseconds from BeginBackward to `time`; BucketStatistics::kNotRecorded for a time that was not recorded.
double SinceBackwardBegan(const StepRecord& record, StepTime time);

}  // namespace lockstep

#endif  // REDUCER_REPORT_STATISTICS_H_
