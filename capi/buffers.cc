// Buffer sets, batch normalisation, casts.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "reducer/buffers/batch_statistics.h"
#include "reducer/buffers/buffers.h"
#include "reducer/pipeline/cast_tensors.h"

using lockstep::TensorView;
using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::OrNone;

namespace {

constexpr double kEpsilonDefault = 1e-5;
constexpr double kMomentumDefault = 0.1;

absl::StatusOr<lockstep_batch_norm_options> Read(const lockstep_batch_norm_options* options) {
  lockstep_batch_norm_options given = {};
  LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_batch_norm_options", &given));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, lockstep::capi::ReadTimeout(given.timeout_ms));
  given.timeout_ms = timeout.count();
  if (!std::isfinite(given.momentum)) return absl::InvalidArgumentError("momentum is not finite");
  if ((given.running_mean == nullptr) != (given.running_variance == nullptr)) {
    return absl::InvalidArgumentError("one of running_mean and running_variance is NULL");
  }
  if (given.epsilon == 0) given.epsilon = kEpsilonDefault;
  if (given.momentum == 0) given.momentum = kMomentumDefault;
  return given;
}

void Store(const std::vector<double>& values, float* out_values) {
  if (out_values == nullptr) return;
  std::transform(values.begin(), values.end(), out_values, [](double value) { return static_cast<float>(value); });
}

}  // namespace

struct lockstep_buffer_set {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::shared_ptr<lockstep::Communicator> communicator;  // outlives the set
  std::unique_ptr<lockstep::BufferSet> set;
};

lockstep_error* lockstep_buffer_set_create(lockstep_communicator* communicator, const lockstep_tensor* tensors,
                                           size_t tensor_count, lockstep_buffer_set** out_set) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_set == nullptr) return NullArgument("out_set");
    const auto views = lockstep::capi::ToTensorViews(tensors, tensor_count, "tensors");
    auto handle = std::make_unique<lockstep_buffer_set>();
    handle->communicator = communicator->Share();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->set,
                              lockstep::BufferSet::Create(communicator->get(), views.status(), OrNone(views)));
    *out_set = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_buffer_set_destroy(lockstep_buffer_set* set) { lockstep::capi::Destroy(set); }

lockstep_error* lockstep_buffer_set_broadcast(lockstep_buffer_set* set, const lockstep_tensor* tensors,
                                              size_t tensor_count, const lockstep_buffer_set_options* options,
                                              lockstep_fresh_buffers** out_fresh) {
  return Guard([&]() -> absl::Status {
    if (set == nullptr) return NullArgument("set");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(set->fork_generation, "buffer set"));
    lockstep_buffer_set_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_buffer_set_options", &given));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, lockstep::capi::ReadTimeout(given.timeout_ms));
    const lockstep::Rank root(given.root);
    const auto views = lockstep::capi::ToTensorViews(tensors, tensor_count, "tensors");
    const absl::Span<const TensorView> tensors_now = OrNone(views);
    if (out_fresh == nullptr) return set->set->BroadcastInPlace(views.status(), tensors_now, root, timeout);
    auto handle = std::make_unique<lockstep_fresh_buffers>();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->buffers, set->set->Broadcast(views.status(), tensors_now, root, timeout));
    *out_fresh = handle.release();
    return absl::OkStatus();
  });
}

void* lockstep_fresh_buffers_data(const lockstep_fresh_buffers* fresh, size_t index) {
  if (fresh == nullptr || index >= fresh->buffers.views().size()) return nullptr;
  return fresh->buffers.views()[index].data();
}

void lockstep_fresh_buffers_destroy(lockstep_fresh_buffers* fresh) { delete fresh; }

lockstep_error* lockstep_batch_norm_combine(lockstep_communicator* communicator, size_t channels, const float* mean,
                                            const float* variance, int64_t count,
                                            const lockstep_batch_norm_options* options, float* out_mean,
                                            float* out_variance, float* out_inverse_std, int64_t* out_count) {
  return Guard(communicator, [&]() -> absl::Status {
    if (mean == nullptr && channels > 0) return NullArgument("mean");
    if (variance == nullptr && channels > 0) return NullArgument("variance");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep_batch_norm_options given, Read(options));
    lockstep::BatchPart part;
    part.count = count;
    part.mean = absl::MakeConstSpan(mean, channels);
    part.variance = absl::MakeConstSpan(variance, channels);
    LOCKSTEP_ASSIGN_OR_RETURN(
        const lockstep::WholeBatch batch,
        lockstep::CombineBatch(*communicator->get(), part, given.epsilon, std::chrono::milliseconds(given.timeout_ms)));
    if (given.running_mean != nullptr) {
      lockstep::UpdateRunning(batch, given.momentum, absl::MakeSpan(given.running_mean, channels),
                              absl::MakeSpan(given.running_variance, channels));
    }
    Store(batch.mean, out_mean);
    Store(batch.variance, out_variance);
    Store(batch.inverse_std, out_inverse_std);
    if (out_count != nullptr) *out_count = batch.count;
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_batch_norm_sum_gradients(lockstep_communicator* communicator, size_t channels, float* sum_dy,
                                                  float* sum_dy_xmu, const lockstep_batch_norm_options* options) {
  return Guard(communicator, [&]() -> absl::Status {
    if (sum_dy == nullptr && channels > 0) return NullArgument("sum_dy");
    if (sum_dy_xmu == nullptr && channels > 0) return NullArgument("sum_dy_xmu");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep_batch_norm_options given, Read(options));
    return lockstep::SumBatchGradients(*communicator->get(), absl::MakeSpan(sum_dy, channels),
                                       absl::MakeSpan(sum_dy_xmu, channels),
                                       std::chrono::milliseconds(given.timeout_ms));
  });
}

lockstep_error* lockstep_cast_tensors(const lockstep_tensor* sources, const lockstep_tensor* targets,
                                      size_t tensor_count) {
  return lockstep::capi::Guard([&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> from,
                              lockstep::capi::ToTensorViews(sources, tensor_count, "sources"));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> to,
                              lockstep::capi::ToTensorViews(targets, tensor_count, "targets"));
    return lockstep::CastTensors(from, to);
  });
}
