#include "examples/fashion_mnist/averager.h"

#include <utility>

namespace fashion_mnist {
namespace {

// Borrows the shape and the data.
lockstep_tensor View(const Parameter& parameter, std::vector<float>* data) {
  lockstep_tensor tensor = {};
  tensor.data = data->data();
  tensor.shape = parameter.shape.data();
  tensor.dimensions = static_cast<int32_t>(parameter.shape.size());
  tensor.dtype = LOCKSTEP_F32;
  tensor.device_kind = LOCKSTEP_HOST;
  return tensor;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Averager>> Averager::Create(World* world, std::vector<Parameter>* parameters,
                                                           const Options& options) {
  std::vector<lockstep_parameter> table(parameters->size());
  for (size_t i = 0; i < table.size(); ++i) {
    lockstep_parameter_init(&table[i]);
    table[i].name = (*parameters)[i].name.c_str();
    table[i].shape = (*parameters)[i].shape.data();
    table[i].dimensions = static_cast<int32_t>((*parameters)[i].shape.size());
    table[i].dtype = LOCKSTEP_F32;
    table[i].device_kind = LOCKSTEP_HOST;
  }
  lockstep_reducer_options reducer_options;
  lockstep_reducer_options_init(&reducer_options);
  reducer_options.bucket_cap_bytes = options.bucket_bytes;
  reducer_options.no_overlap = options.overlap ? 0 : 1;
  lockstep_reducer* reducer = nullptr;
  const absl::Status status = TakeStatus(
      lockstep_reducer_create(world->communicator(), table.data(), table.size(), &reducer_options, &reducer));
  if (!status.ok()) return status;
  return std::unique_ptr<Averager>(new Averager(reducer, parameters));
}

absl::Status Averager::BroadcastParameters() {
  std::vector<lockstep_tensor> tensors;
  for (Parameter& parameter : parameters_) tensors.push_back(View(parameter, &parameter.value));
  return TakeStatus(lockstep_reducer_broadcast(reducer_.get(), tensors.data(), tensors.size(), 0));
}

absl::Status Averager::BeginBackward() { return TakeStatus(lockstep_reducer_begin_backward(reducer_.get(), nullptr)); }

void Averager::MarkReady(size_t index) {
  const lockstep_tensor gradient = View(parameters_[index], &parameters_[index].gradient);
  absl::Status status = TakeStatus(lockstep_reducer_mark_ready(reducer_.get(), index, &gradient, nullptr));
  if (mark_error_.ok()) mark_error_ = std::move(status);
}

absl::Status Averager::EndBackward() {
  const absl::Status mark_error = std::exchange(mark_error_, absl::OkStatus());
  absl::Status status = TakeStatus(lockstep_reducer_end_backward(reducer_.get(), nullptr));
  if (!mark_error.ok()) return mark_error;
  if (!status.ok()) return status;

  lockstep_reducer_statistics statistics;
  lockstep_reducer_statistics_init(&statistics);
  status = TakeStatus(lockstep_reducer_get_statistics(reducer_.get(), &statistics));
  if (!status.ok()) return status;
  ++steps_;
  hidden_ms_ += statistics.hidden_ms;
  exposed_ms_ += statistics.exposed_ms;
  return absl::OkStatus();
}

}  // namespace fashion_mnist
