#include "reducer/report/logging_data.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/types/dtype.h"

namespace lockstep {
namespace {

std::vector<int64_t> BucketSizes(const BucketPlan& plan) {
  std::vector<int64_t> sizes;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    int64_t bytes = 0;
    for (const BucketPlan::Slot& slot : bucket.slots) {
      bytes += static_cast<int64_t>(slot.elements * SizeOf(bucket.dtype));
    }
    sizes.push_back(bytes);
  }
  return sizes;
}

// Of buckets that were reduced: when the first was launched and the last was done.
StepInterval Communication(const StepRecord& record) {
  StepInterval communication;
  for (const BucketRecord& bucket : record.buckets) {
    if (!bucket.at(Stage::kCollective).recorded() || !IsRecorded(bucket.launched)) continue;
    const bool first = !IsRecorded(communication.begin);
    communication.begin = first ? bucket.launched : std::min(communication.begin, bucket.launched);
    communication.end = std::max(communication.end, bucket.done());
  }
  return communication;
}

int64_t BucketsReduced(const StepRecord& record) {
  return std::count_if(record.buckets.begin(), record.buckets.end(),
                       [](const BucketRecord& bucket) { return bucket.at(Stage::kCollective).recorded(); });
}

}  // namespace

LoggingData ConstructionData(Rank rank, int world_size, absl::Span<const Parameter> parameters,
                             const BucketPlan& plan) {
  LoggingData data;
  data.rank = rank.value();
  data.world_size = world_size;
  std::set<std::string> dtypes;
  std::set<std::string> devices;
  for (const Parameter& parameter : parameters) {
    if (parameter.ignored) continue;
    ++data.num_parameter_tensors;
    data.total_parameter_size_bytes += static_cast<int64_t>(parameter.bytes());
    dtypes.insert(Name(parameter.dtype));
    devices.insert(Name(parameter.device));
  }
  data.dtypes.assign(dtypes.begin(), dtypes.end());
  data.is_multi_device_module = devices.size() > 1;
  data.bucket_sizes = BucketSizes(plan);
  return data;
}

void SetRebuiltBuckets(const BucketPlan& plan, LoggingData* data) {
  data->has_rebuilt_buckets = true;
  data->rebuilt_bucket_sizes = BucketSizes(plan);
  data->rebuilt_per_bucket_param_indices.clear();
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    std::vector<int64_t> indices;
    for (const BucketPlan::Slot& slot : bucket.slots) indices.push_back(static_cast<int64_t>(slot.parameter));
    data->rebuilt_per_bucket_param_indices.push_back(std::move(indices));
  }
}

std::string ToJson(const LoggingData& data) {
  nlohmann::ordered_json json;
#define LOCKSTEP_FIELD(name) json[#name] = data.name
  LOCKSTEP_FIELD(world_size);
  LOCKSTEP_FIELD(rank);
  LOCKSTEP_FIELD(backend_name);
  LOCKSTEP_FIELD(num_parameter_tensors);
  LOCKSTEP_FIELD(total_parameter_size_bytes);
  LOCKSTEP_FIELD(dtypes);
  LOCKSTEP_FIELD(is_multi_device_module);
  LOCKSTEP_FIELD(bucket_sizes);
  LOCKSTEP_FIELD(bucket_cap_bytes);
  LOCKSTEP_FIELD(broadcast_buffers);
  LOCKSTEP_FIELD(find_unused_parameters);
  LOCKSTEP_FIELD(gradient_as_bucket_view);
  LOCKSTEP_FIELD(static_graph);
  LOCKSTEP_FIELD(comm_hook);
  LOCKSTEP_FIELD(has_rebuilt_buckets);
  LOCKSTEP_FIELD(rebuilt_bucket_sizes);
  LOCKSTEP_FIELD(rebuilt_per_bucket_param_indices);
  LOCKSTEP_FIELD(join_uneven_inputs);
  if (data.can_set_static_graph.has_value()) json["can_set_static_graph"] = *data.can_set_static_graph;
  LOCKSTEP_FIELD(error);
  LOCKSTEP_FIELD(iteration);
  LOCKSTEP_FIELD(num_buckets_reduced);
  LOCKSTEP_FIELD(unused_parameter_size);
  LOCKSTEP_FIELD(prev_iteration_grad_ready_order_indices);
  LOCKSTEP_FIELD(forward_compute_time);
  LOCKSTEP_FIELD(backward_compute_time);
  LOCKSTEP_FIELD(backward_comm_time);
  LOCKSTEP_FIELD(backward_compute_comm_overlap_time);
  LOCKSTEP_FIELD(avg_forward_compute_time);
  LOCKSTEP_FIELD(avg_backward_compute_time);
  LOCKSTEP_FIELD(avg_backward_comm_time);
  LOCKSTEP_FIELD(avg_backward_compute_comm_overlap_time);
  LOCKSTEP_FIELD(forward_compute_time_start);
  LOCKSTEP_FIELD(backward_compute_time_start);
  LOCKSTEP_FIELD(backward_comm_time_start);
  LOCKSTEP_FIELD(backward_compute_time_end);
  LOCKSTEP_FIELD(backward_comm_time_end);
#undef LOCKSTEP_FIELD
  return json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::Status RuntimeSampler::SetSampleRate(int64_t sample_rate) {
  if (sample_rate < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sample rate of ", sample_rate, ": every how many iterations must be at least 1"));
  }
  sample_rate_ = sample_rate;
  return absl::OkStatus();
}

void RuntimeSampler::Publish(const StepRecord& last, const ClockAnchor& anchor, LoggingData* data) {
  const auto iteration = static_cast<int64_t>(last.step);
  if (iteration == 0 || iteration == data->iteration || !IsSampled(iteration)) return;
  data->iteration = iteration;
  data->num_buckets_reduced = BucketsReduced(last);
  data->unused_parameter_size = last.unused_parameter_bytes;
  data->prev_iteration_grad_ready_order_indices.assign(last.ready_order.begin(), last.ready_order.end());

  const StepInterval communication = Communication(last);
  Measure(last.forward_begin, last.backward_begin, &forward_compute_, &data->forward_compute_time,
          &data->avg_forward_compute_time);
  Measure(last.backward_begin, last.end_called, &backward_compute_, &data->backward_compute_time,
          &data->avg_backward_compute_time);
  Measure(communication.begin, communication.end, &backward_comm_, &data->backward_comm_time,
          &data->avg_backward_comm_time);
  // The last bucket may be done before the backward is.
  Measure(communication.begin, std::min(last.end_called, communication.end), &overlap_,
          &data->backward_compute_comm_overlap_time, &data->avg_backward_compute_comm_overlap_time);

  data->forward_compute_time_start = anchor.UnixNanoseconds(last.forward_begin);
  data->backward_compute_time_start = anchor.UnixNanoseconds(last.backward_begin);
  data->backward_comm_time_start = anchor.UnixNanoseconds(communication.begin);
  data->backward_compute_time_end = anchor.UnixNanoseconds(last.end_called);
  data->backward_comm_time_end = anchor.UnixNanoseconds(communication.end);
}

void RuntimeSampler::Measure(StepTime begin, StepTime end, Mean* mean, int64_t* nanoseconds, int64_t* average) {
  *nanoseconds = 0;
  if (!IsRecorded(begin) || !IsRecorded(end) || end < begin) return;
  *nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count();
  mean->sum += *nanoseconds;
  *average = mean->sum / ++mean->count;
}

}  // namespace lockstep
