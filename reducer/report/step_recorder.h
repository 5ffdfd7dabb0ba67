// Fills in step records while a reducer works, and keeps the last few.
//
//   BackwardBegan   Marked... Ready   Launched   Began, Ended, Sent...   EndCalled   EndReturned   Finished
//
// Externally synchronised, with one relief: Began, Ended and Sent write what belongs to their bucket alone, so those
// of one bucket need only be ordered among themselves and between that backward's BackwardBegan and its Finished, as
// the work on the streams is anyway. They may run while other threads call anything but BackwardBegan and Finished.
//
// A call reads the clock at most once, takes no lock, and allocates nothing while the plan has no more buckets than
// before.

#ifndef REDUCER_REPORT_STEP_RECORDER_H_
#define REDUCER_REPORT_STEP_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "reducer/report/step_record.h"

namespace lockstep {

class StepRecorder {
 public:
  static constexpr size_t kKept = 16;

  StepRecorder(size_t buckets, size_t parameters);

  // From the next backward on there are so many buckets.
  void Replan(size_t buckets) { buckets_ = buckets; }

  // Of the backward to come, if one does.
  void ForwardBegan(StepTime now = StepClock::now()) { forward_begin_ = now; }

  // A backward that was begun before and not finished leaves no record.
  void BackwardBegan(uint64_t step, StepTime now = StepClock::now());
  void Marked(size_t parameter, size_t bucket);  // reads the clock for a bucket's first parameter only
  void Marked(size_t parameter, size_t bucket, StepTime now);
  void Ready(size_t bucket, StepTime now = StepClock::now()) { current_.buckets[bucket].ready = now; }
  void Launched(size_t bucket, StepTime now = StepClock::now()) { current_.buckets[bucket].launched = now; }
  void EndCalled(StepTime now = StepClock::now()) { current_.end_called = now; }
  void EndReturned(StepTime now = StepClock::now()) { current_.end = now; }
  void Unused(int64_t parameter_bytes) { current_.unused_parameter_bytes = parameter_bytes; }

  // A stage that comes in several pieces lasts from the first call of Began to the last of Ended.
  void Began(Stage stage, size_t bucket, StepTime now = StepClock::now());
  void Ended(Stage stage, size_t bucket, StepTime now = StepClock::now());
  void Sent(size_t bucket, int64_t bytes) { current_.buckets[bucket].bytes += bytes; }

  // Everything of this backward is done: its record is the last one from now on. An EndBackward that waited for it, and
  // for which EndReturned was not called, is taken to return now.
  void Finished(StepTime now = StepClock::now());

  size_t kept() const { return kept_; }
  // The record of the `back`-th backward before the last that finished: 0 is that one itself. Below kept(), but that
  // the last of none is an empty record. Valid until the next call of Finished.
  const StepRecord& record(size_t back) const { return ring_[(next_ + kKept - 1 - back) % kKept]; }
  const StepRecord& last() const { return record(0); }

 private:
  size_t buckets_;
  StepTime forward_begin_;
  StepRecord current_;
  std::vector<StepRecord> ring_;  // of kKept
  size_t next_ = 0;               // where the next record that is finished goes
  size_t kept_ = 0;
};

}  // namespace lockstep

#endif  // REDUCER_REPORT_STEP_RECORDER_H_
