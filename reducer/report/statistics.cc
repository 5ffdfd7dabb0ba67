#include "reducer/report/statistics.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace lockstep {
namespace {

double Milliseconds(StepClock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

StepClock::duration Length(const StepInterval& interval) { return interval.end - interval.begin; }

// What of an interval lies after EndBackward was called.
StepClock::duration Exposed(const StepRecord& record, const StepInterval& interval) {
  if (!IsRecorded(record.end_called)) return StepClock::duration::zero();
  return std::max(StepClock::duration::zero(), interval.end - std::max(interval.begin, record.end_called));
}

// The times in which any bucket was on the wire, in order and apart from each other.
std::vector<StepInterval> OnTheWire(const StepRecord& record) {
  std::vector<StepInterval> intervals;
  for (const BucketRecord& bucket : record.buckets) {
    if (bucket.at(Stage::kCollective).recorded()) intervals.push_back(bucket.at(Stage::kCollective));
  }
  std::sort(intervals.begin(), intervals.end(),
            [](const StepInterval& a, const StepInterval& b) { return a.begin < b.begin; });
  std::vector<StepInterval> apart;
  for (const StepInterval& interval : intervals) {
    if (apart.empty() || apart.back().end < interval.begin) {
      apart.push_back(interval);
    } else {
      apart.back().end = std::max(apart.back().end, interval.end);
    }
  }
  return apart;
}

}  // namespace

ReducerStatistics Statistics(const StepRecord& record) {
  ReducerStatistics statistics;
  statistics.steps = static_cast<int64_t>(record.step);
  if (IsRecorded(record.end_called)) statistics.backward_ms = Milliseconds(record.end_called - record.backward_begin);
  StepClock::duration communication{};
  StepClock::duration exposed{};
  for (const StepInterval& interval : OnTheWire(record)) {
    communication += Length(interval);
    exposed += Exposed(record, interval);
  }
  statistics.communication_ms = Milliseconds(communication);
  statistics.exposed_ms = Milliseconds(exposed);
  for (const BucketRecord& bucket : record.buckets) {
    statistics.bytes_reduced += bucket.bytes;
    if (!IsRecorded(bucket.launched)) continue;
    ++statistics.buckets;
    const bool in_backward = !IsRecorded(record.end_called) || bucket.launched < record.end_called;
    if (in_backward) ++statistics.buckets_launched_in_backward;
  }
  return statistics;
}

double SinceBackwardBegan(const StepRecord& record, StepTime time) {
  return IsRecorded(time) ? Milliseconds(time - record.backward_begin) : BucketStatistics::kNotRecorded;
}

BucketStatistics Statistics(const StepRecord& record, size_t bucket) {
  const BucketRecord& times = record.buckets[bucket];
  const StepInterval& wire = times.at(Stage::kCollective);
  BucketStatistics statistics;
  statistics.ready_ms = SinceBackwardBegan(record, times.ready);
  statistics.launched_ms = SinceBackwardBegan(record, times.launched);
  statistics.wire_begin_ms = SinceBackwardBegan(record, wire.begin);
  statistics.wire_end_ms = SinceBackwardBegan(record, wire.end);
  statistics.done_ms = SinceBackwardBegan(record, times.done());
  statistics.bytes = times.bytes;
  if (wire.recorded()) {
    statistics.communication_ms = Milliseconds(Length(wire));
    statistics.exposed_ms = Milliseconds(Exposed(record, wire));
  }
  return statistics;
}

}  // namespace lockstep
