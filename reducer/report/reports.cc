#include "reducer/report/reports.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/types/dtype.h"

namespace lockstep {

// ---- Statistics

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

double SinceBackwardBegan(const StepRecord& record, StepTime time) {
  return IsRecorded(time) ? Milliseconds(time - record.backward_begin) : BucketStatistics::kNotRecorded;
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
  statistics.replicas_ms = Milliseconds(Length(record.replicas));
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

// ---- Logging data

namespace {

using Json = nlohmann::ordered_json;

Json BucketSizes(const BucketPlan& plan) {
  Json sizes = Json::array();
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    size_t elements = 0;
    for (const BucketPlan::Slot& slot : bucket.slots) elements += slot.elements;
    sizes.push_back(elements * SizeOf(bucket.dtype));
  }
  return sizes;
}

Json BucketParameters(const BucketPlan& plan) {
  Json buckets = Json::array();
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    buckets.push_back(Json::array());
    for (const BucketPlan::Slot& slot : bucket.slots) buckets.back().push_back(slot.parameter);
  }
  return buckets;
}

void AddParameters(absl::Span<const Parameter> parameters, Json& json) {
  size_t count = 0;
  size_t bytes = 0;
  std::set<std::string> dtypes;
  for (const Parameter& parameter : parameters) {
    if (parameter.ignored) continue;
    ++count;
    bytes += parameter.bytes();
    dtypes.insert(Name(parameter.dtype));
  }
  json["num_parameter_tensors"] = count;
  json["total_parameter_size_bytes"] = bytes;
  json["dtypes"] = dtypes;
  json["is_multi_device_module"] = false;  // CheckParameters() has refused that
}

void AddSampledStep(const ReducerRecord& record, Json& json) {
  const StepRecord& step = record.sampled;
  json["iteration"] = step.step;  // 0: none yet
  json["num_buckets_reduced"] = std::count_if(step.buckets.begin(), step.buckets.end(), [](const BucketRecord& bucket) {
    return bucket.at(Stage::kCollective).recorded();
  });
  json["unused_parameter_size"] = step.unused_parameter_bytes;
  json["prev_iteration_grad_ready_order_indices"] = step.ready_order;
  const char* const names[kPhaseCount] = {"forward_compute_time", "backward_compute_time", "backward_comm_time",
                                          "backward_compute_comm_overlap_time"};
  const std::array<StepInterval, kPhaseCount> phases = Phases(step);
  for (int p = 0; p < kPhaseCount; ++p) json[names[p]] = Nanoseconds(phases[p]).value_or(0);
  for (int p = 0; p < kPhaseCount; ++p) {
    const ReducerRecord::Mean& mean = record.means[p];
    json[absl::StrCat("avg_", names[p])] = mean.count == 0 ? 0 : mean.sum / mean.count;
  }
  const StepInterval& communication = phases[static_cast<int>(Phase::kCommunication)];
  const ClockAnchor& anchor = record.anchor;
  json["forward_compute_time_start"] = anchor.UnixNanoseconds(step.forward_begin);
  json["backward_compute_time_start"] = anchor.UnixNanoseconds(step.backward_begin);
  json["backward_comm_time_start"] = anchor.UnixNanoseconds(communication.begin);
  json["backward_compute_time_end"] = anchor.UnixNanoseconds(step.end_called);
  json["backward_comm_time_end"] = anchor.UnixNanoseconds(communication.end);
}

}  // namespace

std::string LoggingData(const ReducerRecord& record) {
  Json json;
  json["world_size"] = record.world_size;
  json["rank"] = record.rank.value();
  json["backend_name"] = "lockstep";
  AddParameters(record.parameters, json);
  json["bucket_sizes"] = BucketSizes(record.first_plan);  // bytes of the gradients in each
  json["bucket_cap_bytes"] = record.bucket_cap_bytes;
  json["broadcast_buffers"] = record.broadcast_buffers;
  json["find_unused_parameters"] = record.find_unused_parameters;
  json["gradient_as_bucket_view"] = record.gradient_as_bucket_view;
  json["static_graph"] = record.static_graph;
  json["comm_hook"] = record.comm_hook;
  const BucketPlan rebuilt = record.rebuilt_plan.value_or(BucketPlan());
  json["has_rebuilt_buckets"] = record.rebuilt_plan.has_value();
  json["rebuilt_bucket_sizes"] = BucketSizes(rebuilt);
  json["rebuilt_per_bucket_param_indices"] = BucketParameters(rebuilt);
  json["join_uneven_inputs"] = record.join_uneven_inputs;
  if (record.can_set_static_graph.has_value()) json["can_set_static_graph"] = *record.can_set_static_graph;
  json["error"] = record.error;
  AddSampledStep(record, json);
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// ---- Summary

namespace {

constexpr size_t kRowsMax = 20;
constexpr int kColumns = 24;

// Milliseconds since backward began that a drawing covers, and where backward ends in it.
struct Scale {
  double length_ms = 0;
  double backward_ms = 0;
};

Scale ScaleOf(const StepRecord& record) {
  Scale scale;
  scale.backward_ms = std::max(0.0, SinceBackwardBegan(record, record.end_called));
  scale.length_ms = scale.backward_ms;
  for (const BucketRecord& bucket : record.buckets) {
    scale.length_ms = std::max(scale.length_ms, SinceBackwardBegan(record, bucket.done()));
  }
  return scale;
}

std::string Draw(const BucketStatistics& bucket, const Scale& scale) {
  std::string columns(kColumns, '.');
  if (scale.length_ms <= 0) return columns;
  const double column_ms = scale.length_ms / kColumns;
  for (int c = 0; c < kColumns && c * column_ms < scale.backward_ms; ++c) columns[c] = '-';
  if (bucket.wire_end_ms == BucketStatistics::kNotRecorded) return columns;
  // However short it was, it has a column.
  const int begin = std::min(static_cast<int>(bucket.wire_begin_ms / column_ms), kColumns - 1);
  const int end = std::max(begin + 1, static_cast<int>(std::ceil(bucket.wire_end_ms / column_ms)));
  for (int c = begin; c < std::min(end, kColumns); ++c) columns[c] = '#';
  return columns;
}

std::string Cell(double ms) {
  return ms == BucketStatistics::kNotRecorded ? absl::StrFormat("%8s", "-") : absl::StrFormat("%8.2f", ms);
}

std::string Row(size_t index, size_t parameters, const BucketStatistics& bucket, const Scale& scale) {
  return absl::StrCat(absl::StrFormat("%6d %6d %12d ", index, parameters, bucket.bytes), Cell(bucket.ready_ms), " ",
                      Cell(bucket.launched_ms), " ", Cell(bucket.wire_begin_ms), " -", Cell(bucket.wire_end_ms), " ",
                      Cell(bucket.done_ms), "  |", Draw(bucket, scale), "|\n");
}

}  // namespace

std::string Summary(const ReducerRecord& of) {
  const StepRecord& record = of.last;
  const ReducerStatistics total = Statistics(record);
  std::string text = absl::StrFormat(
      "step %d, rank %d of %d: backward %.2f ms, communication %.2f ms (%.2f hidden, %.2f exposed)\n"
      "%d of %d buckets launched in backward, %d bytes reduced; times in ms since backward began\n\n"
      "bucket params        bytes    ready   launch       on the wire     done  |%-*s|\n",
      record.step, of.rank.value(), of.world_size, total.backward_ms, total.communication_ms, total.hidden_ms(),
      total.exposed_ms, total.buckets_launched_in_backward, record.buckets.size(), total.bytes_reduced, kColumns,
      "- backward, # on wire");
  const Scale scale = ScaleOf(record);
  const size_t count = record.buckets.size();
  for (size_t b = 0; b < count; ++b) {
    if (count > kRowsMax && b == kRowsMax / 2) {
      b = count - kRowsMax / 2;
      absl::StrAppend(&text, "   ... ", count - kRowsMax, " more\n");
    }
    absl::StrAppend(&text, Row(b, record.buckets[b].parameters, Statistics(record, b), scale));
  }
  return text;
}

}  // namespace lockstep
