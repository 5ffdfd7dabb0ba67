#include "reducer/buffers/batch_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "reducer/plan/agreement.h"

namespace lockstep {
namespace {

// Counts of as many ranks as there may be add up without overflow.
constexpr int64_t kCountMax = int64_t{1} << 40;

absl::Status CheckPart(const BatchPart& part, double epsilon) {
  if (part.count < 0 || part.count > kCountMax) {
    return absl::InvalidArgumentError(absl::StrCat("batch statistics: a count of ", part.count));
  }
  if (part.mean.size() != part.variance.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch statistics: ", part.mean.size(), " means and ", part.variance.size(), " variances"));
  }
  if (!(epsilon >= 0) || std::isinf(epsilon)) {
    return absl::InvalidArgumentError(absl::StrCat("batch statistics: an epsilon of ", epsilon));
  }
  return absl::OkStatus();
}

}  // namespace

WholeBatch JoinParts(absl::Span<const BatchPart> parts, int64_t channels, double epsilon) {
  WholeBatch batch;
  batch.mean.resize(channels);
  batch.variance.resize(channels);  // at first the sum of squared distances
  batch.inverse_std.resize(channels);
  for (const BatchPart& part : parts) {
    if (part.count == 0) continue;
    const double before = static_cast<double>(batch.count);
    batch.count += part.count;
    const double share = static_cast<double>(part.count) / static_cast<double>(batch.count);
    for (int64_t c = 0; c < channels; ++c) {
      const double distance = part.mean[c] - batch.mean[c];
      batch.mean[c] += distance * share;
      batch.variance[c] += static_cast<double>(part.variance[c]) * static_cast<double>(part.count) +
                           distance * distance * before * share;
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    if (batch.count > 0) batch.variance[c] /= static_cast<double>(batch.count);
    batch.inverse_std[c] = 1 / std::sqrt(batch.variance[c] + epsilon);
  }
  return batch;
}

absl::StatusOr<WholeBatch> CombineBatch(Communicator& communicator, const BatchPart& part, double epsilon,
                                        std::chrono::milliseconds timeout) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOutsideGroup(communicator));
  LOCKSTEP_RETURN_IF_ERROR(CheckPart(part, epsilon));
  // Of each rank its count, which is exact beyond what a float can tell, its means and its variances.
  const size_t channels = part.mean.size();
  const size_t values_bytes = channels * sizeof(float);
  const size_t part_bytes = sizeof(int64_t) + 2 * values_bytes;
  std::vector<char> mine(part_bytes);
  std::memcpy(mine.data(), &part.count, sizeof(int64_t));
  if (channels > 0) {
    std::memcpy(mine.data() + sizeof(int64_t), part.mean.data(), values_bytes);
    std::memcpy(mine.data() + sizeof(int64_t) + values_bytes, part.variance.data(), values_bytes);
  }
  std::vector<char> all(part_bytes * communicator.size());
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.count = all.size();
  request.input = mine.data();
  request.output = all.data();
  request.timeout = timeout;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));

  std::vector<BatchPart> parts(communicator.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    const char* const at = all.data() + r * part_bytes;
    const float* const values = reinterpret_cast<const float*>(at + sizeof(int64_t));
    std::memcpy(&parts[r].count, at, sizeof(int64_t));
    parts[r].mean = absl::MakeConstSpan(values, channels);
    parts[r].variance = absl::MakeConstSpan(values + channels, channels);
  }
  return JoinParts(parts, static_cast<int64_t>(channels), epsilon);
}

void UpdateRunning(const WholeBatch& batch, double momentum, absl::Span<float> mean, absl::Span<float> variance) {
  LOCKSTEP_CHECK(mean.size() == batch.mean.size() && variance.size() == batch.variance.size());
  const double count = static_cast<double>(batch.count);
  for (size_t c = 0; c < mean.size(); ++c) {
    if (batch.count > 0) mean[c] = static_cast<float>((1 - momentum) * mean[c] + momentum * batch.mean[c]);
    if (batch.count > 1) {
      const double unbiased = batch.variance[c] * (count / (count - 1));
      variance[c] = static_cast<float>((1 - momentum) * variance[c] + momentum * unbiased);
    }
  }
}

absl::Status SumBatchGradients(Communicator& communicator, absl::Span<float> sum_dy, absl::Span<float> sum_dy_xmu,
                               std::chrono::milliseconds timeout) {
  LOCKSTEP_RETURN_IF_ERROR(CheckOutsideGroup(communicator));
  if (sum_dy.size() != sum_dy_xmu.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch gradients: ", sum_dy.size(), " sums of dy and ", sum_dy_xmu.size(), " of dy * (x - mean)"));
  }
  std::vector<double> sums(sum_dy.begin(), sum_dy.end());
  sums.insert(sums.end(), sum_dy_xmu.begin(), sum_dy_xmu.end());
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kF64;
  request.count = sums.size();
  request.input = sums.data();
  request.output = sums.data();
  request.timeout = timeout;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  const auto narrow = [](double value) { return static_cast<float>(value); };
  std::transform(sums.begin(), sums.begin() + sum_dy.size(), sum_dy.begin(), narrow);
  std::transform(sums.begin() + sum_dy.size(), sums.end(), sum_dy_xmu.begin(), narrow);
  return absl::OkStatus();
}

}  // namespace lockstep
