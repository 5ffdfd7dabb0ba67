#include "reducer/report/record.h"

#include "absl/strings/str_cat.h"

namespace lockstep {

void StepRecord::Begin(uint64_t number, const BucketPlan& plan, StepTime forward, StepTime now) {
  step = number;
  forward_begin = forward;
  backward_begin = now;
  end_called = StepTime();
  end = StepTime();
  buckets.assign(plan.buckets.size(), BucketRecord());
  for (size_t b = 0; b < buckets.size(); ++b) buckets[b].parameters = plan.buckets[b].slots.size();
  ready_order.clear();
  ready_order.reserve(plan.locations.size());
  unused_parameter_bytes = 0;
}

int64_t ClockAnchor::UnixNanoseconds(StepTime time) const {
  if (!IsRecorded(time)) return 0;
  const auto since_1970 = system.time_since_epoch() + (time - steady);
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
}

std::array<StepInterval, kPhaseCount> Phases(const StepRecord& record) {
  StepInterval communication;
  for (const BucketRecord& bucket : record.buckets) {
    if (!bucket.at(Stage::kCollective).recorded() || !IsRecorded(bucket.launched)) continue;
    const bool first = !IsRecorded(communication.begin);
    communication.begin = first ? bucket.launched : std::min(communication.begin, bucket.launched);
    communication.end = std::max(communication.end, bucket.done());
  }
  return {StepInterval{record.forward_begin, record.backward_begin},
          StepInterval{record.backward_begin, record.end_called}, communication,
          // The last bucket may be done before the backward is.
          StepInterval{communication.begin, std::min(record.end_called, communication.end)}};
}

absl::optional<int64_t> Nanoseconds(const StepInterval& interval) {
  if (!interval.recorded() || interval.end < interval.begin) return absl::nullopt;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(interval.end - interval.begin).count();
}

void ReducerRecord::Sample() {
  const bool due = last.step <= kFirst || last.step % sample_rate == 0;
  if (last.step == 0 || last.step == sampled.step || !due) return;
  sampled = last;
  const auto phases = Phases(sampled);
  for (int p = 0; p < kPhaseCount; ++p) {
    const absl::optional<int64_t> length = Nanoseconds(phases[p]);
    means[p].sum += length.value_or(0);
    means[p].count += length.has_value();
  }
}

absl::Status ReducerRecord::SetSampleRate(int64_t rate) {
  if (rate < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sample rate of ", rate, ": every how many iterations must be at least 1"));
  }
  sample_rate = static_cast<uint64_t>(rate);
  return absl::OkStatus();
}

}  // namespace lockstep
