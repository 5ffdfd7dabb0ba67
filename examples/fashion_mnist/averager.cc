#include "examples/fashion_mnist/averager.h"

#include <cstring>
#include <utility>

#include "examples/fashion_mnist/two_phase_hook.h"

namespace fashion_mnist {
namespace {

// Borrows the shape and the data.
lockstep_tensor View(const Parameter& parameter, void* data, lockstep_dtype dtype) {
  lockstep_tensor tensor = {};
  tensor.data = data;
  tensor.shape = parameter.shape.data();
  tensor.dimensions = static_cast<int32_t>(parameter.shape.size());
  tensor.dtype = dtype;
  tensor.device_kind = LOCKSTEP_HOST;
  return tensor;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Averager>> Averager::Create(World* world, std::vector<Parameter>* parameters,
                                                           const Options& options) {
  std::unique_ptr<Averager> averager(new Averager(parameters, options));
  const absl::Status status = averager->CreateReducer(world);
  if (!status.ok()) return status;
  return averager;
}

Averager::Averager(std::vector<Parameter>* parameters, const Options& options)
    : parameters_(*parameters), options_(options) {
  if (!options_.bf16_gradients) return;
  for (const Parameter& parameter : parameters_) bf16_gradients_.emplace_back(parameter.gradient.size());
}

absl::Status Averager::CreateReducer(World* world) {
  std::vector<lockstep_parameter> table(parameters_.size());
  for (size_t i = 0; i < table.size(); ++i) {
    LOCKSTEP_INIT(table[i]);
    table[i].name = parameters_[i].name.c_str();
    table[i].shape = parameters_[i].shape.data();
    table[i].dimensions = static_cast<int32_t>(parameters_[i].shape.size());
    table[i].dtype = options_.bf16_gradients ? LOCKSTEP_BF16 : LOCKSTEP_F32;
    table[i].device_kind = LOCKSTEP_HOST;
  }
  lockstep_reducer_options options;
  LOCKSTEP_INIT(options);
  options.bucket_cap_bytes = options_.bucket_bytes;
  options.no_overlap = options_.overlap ? 0 : 1;
  options.find_unused_parameters = options_.find_unused ? 1 : 0;
  options.static_graph = options_.static_graph ? 1 : 0;
  options.hook = options_.hook;
  if (options_.hook == LOCKSTEP_HOOK_CALLBACK) {
    options.hook_name = "two_phase";
    options.hook_issue = AverageInTwoPhases;
  }
  if (options_.optimizer_step != nullptr) {
    options.optimizer_step = StepBucket;
    options.optimizer_context = this;
  }
  lockstep_reducer* reducer = nullptr;
  const absl::Status status =
      TakeStatus(lockstep_reducer_create(world->communicator(), table.data(), table.size(), &options, &reducer));
  reducer_.reset(reducer);
  return status;
}

absl::Status Averager::BroadcastParameters() {
  std::vector<lockstep_tensor> tensors;
  for (Parameter& parameter : parameters_) tensors.push_back(View(parameter, parameter.value.data(), LOCKSTEP_F32));
  return TakeStatus(lockstep_reducer_broadcast(reducer_.get(), tensors.data(), tensors.size(), 0));
}

absl::Status Averager::BeginBackward(Sync sync, const std::vector<size_t>& unused) {
  synchronized_ = sync == Sync::kYes;
  lockstep_backward_options options;
  LOCKSTEP_INIT(options);
  options.no_sync = synchronized_ ? 0 : 1;
  if (options_.find_unused) {
    // To be told now, rather than to find out at the end, lets buckets leave while the backward pass goes on.
    options.unused_given = 1;
    options.unused = unused.data();
    options.unused_count = unused.size();
  }
  return TakeStatus(lockstep_reducer_begin_backward(reducer_.get(), &options));
}

void Averager::MarkReady(size_t index) {
  Parameter& parameter = parameters_[index];
  const lockstep_tensor f32 = View(parameter, parameter.gradient.data(), LOCKSTEP_F32);
  lockstep_error* error;
  if (options_.bf16_gradients) {
    const lockstep_tensor bf16 = View(parameter, bf16_gradients_[index].data(), LOCKSTEP_BF16);
    error = lockstep_cast_tensors(&f32, &bf16, 1);
    if (error == nullptr) error = lockstep_reducer_mark_ready_into(reducer_.get(), index, &bf16, &f32, nullptr);
  } else {
    error = lockstep_reducer_mark_ready(reducer_.get(), index, &f32, nullptr);
  }
  absl::Status status = TakeStatus(error);
  if (mark_error_.ok()) mark_error_ = std::move(status);
}

absl::Status Averager::EndBackward() {
  const absl::Status mark_error = std::exchange(mark_error_, absl::OkStatus());
  absl::Status status = TakeStatus(lockstep_reducer_end_backward(reducer_.get(), nullptr));
  if (!mark_error.ok()) return mark_error;
  if (!status.ok() || !synchronized_) return status;

  lockstep_reducer_statistics statistics;
  LOCKSTEP_INIT(statistics);
  status = TakeStatus(lockstep_reducer_get_statistics(reducer_.get(), &statistics));
  if (!status.ok()) return status;
  hidden_ms_ += statistics.hidden_ms;
  exposed_ms_ += statistics.exposed_ms;
  return options_.find_unused && options_.optimizer_step == nullptr ? FetchMissing() : absl::OkStatus();
}

absl::Status Averager::FetchMissing() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (parameter.has_gradient) continue;
    lockstep_tensor average;
    int32_t used = 0;
    absl::Status status = TakeStatus(lockstep_reducer_averaged_gradient(reducer_.get(), i, &average, &used));
    if (!status.ok()) return status;
    if (used == 0) continue;
    const lockstep_tensor gradient = View(parameter, parameter.gradient.data(), LOCKSTEP_F32);
    status = TakeStatus(lockstep_cast_tensors(&average, &gradient, 1));
    if (!status.ok()) return status;
    parameter.has_gradient = true;
  }
  return absl::OkStatus();
}

lockstep_error* Averager::StepBucket(void* averager, const lockstep_reduced_bucket* bucket) {
  Averager* self = static_cast<Averager*>(averager);
  for (size_t i = 0; i < bucket->parameter_count; ++i) {
    const size_t index = bucket->parameters[i];
    const Parameter& parameter = self->parameters_[index];
    lockstep_tensor average = bucket->gradients[i];
    // What a rank without a gradient is given is of the dtype of the table.
    if (average.dtype != LOCKSTEP_F32) {
      self->widened_.resize(parameter.gradient.size());
      const lockstep_tensor f32 = View(parameter, self->widened_.data(), LOCKSTEP_F32);
      if (lockstep_error* error = lockstep_cast_tensors(&average, &f32, 1)) return error;
      average = f32;
    }
    self->options_.optimizer_step(index, static_cast<const float*>(average.data));
  }
  return nullptr;
}

}  // namespace fashion_mnist
