#include "reducer/report/step_recorder.h"

#include <algorithm>
#include <utility>

namespace lockstep {

StepRecorder::StepRecorder(size_t buckets, size_t parameters) : buckets_(buckets), ring_(kKept) {
  const auto reserve = [&](StepRecord& record) {
    record.buckets.reserve(buckets);
    record.ready_order.reserve(parameters);
  };
  reserve(current_);
  for (StepRecord& record : ring_) reserve(record);
}

void StepRecorder::BackwardBegan(uint64_t step, StepTime now) {
  current_.step = step;
  current_.forward_begin = std::exchange(forward_begin_, StepTime());
  current_.backward_begin = now;
  current_.end_called = StepTime();
  current_.end = StepTime();
  current_.buckets.assign(buckets_, BucketRecord());
  current_.ready_order.clear();
  current_.unused_parameter_bytes = 0;
}

void StepRecorder::Marked(size_t parameter, size_t bucket) {
  const bool first = !IsRecorded(current_.buckets[bucket].first_marked);
  Marked(parameter, bucket, first ? StepClock::now() : StepTime());
}

void StepRecorder::Marked(size_t parameter, size_t bucket, StepTime now) {
  BucketRecord& record = current_.buckets[bucket];
  if (!IsRecorded(record.first_marked)) record.first_marked = now;
  current_.ready_order.push_back(static_cast<uint32_t>(parameter));
}

void StepRecorder::Began(Stage stage, size_t bucket, StepTime now) {
  StepInterval& interval = current_.buckets[bucket].at(stage);
  if (!IsRecorded(interval.begin)) interval.begin = now;
}

void StepRecorder::Ended(Stage stage, size_t bucket, StepTime now) { current_.buckets[bucket].at(stage).end = now; }

void StepRecorder::Finished(StepTime now) {
  if (!IsRecorded(current_.end)) current_.end = now;
  std::swap(current_, ring_[next_]);
  next_ = (next_ + 1) % kKept;
  kept_ = std::min(kept_ + 1, kKept);
}

}  // namespace lockstep
