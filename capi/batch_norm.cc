#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "comm/communicator.h"
#include "reducer/buffers/batch_statistics.h"

namespace {

using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

constexpr double kEpsilonDefault = 1e-5;
constexpr double kMomentumDefault = 0.1;

absl::StatusOr<lockstep_batch_norm_options> Read(const lockstep_batch_norm_options* options) {
  lockstep_batch_norm_options given = {};
  LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_batch_norm_options", &given));
  if (given.timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
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
