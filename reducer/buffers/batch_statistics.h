// Batch normalisation over the elements of all ranks (what PyTorch calls SyncBatchNorm): what its forward and backward
// passes have to bring together, each by one collective.
//
// The embedder computes sums over its own part of the batch, and may call these between steps on the reducer's
// communicator, or at any time on a duplicate of it. Every rank calls the same one, with as many channels. What
// arguments are refused (INVALID_ARGUMENT) is said before anything is sent. Everything is combined in double, in one
// order on all ranks: they get the same bits.
//
// With y = (x - mean) * inverse_std * weight + bias, N elements of a channel in the whole batch, and the sums of dy and
// of dy * (x - mean) over them:
//   dx = (dy - sum_dy / N - (x - mean) * inverse_std^2 * sum_dy_xmu / N) * inverse_std * weight

#ifndef REDUCER_BUFFERS_BATCH_STATISTICS_H_
#define REDUCER_BUFFERS_BATCH_STATISTICS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/communicator.h"

namespace lockstep {

// One rank's part of a batch, by channel. Borrows.
struct BatchPart {
  int64_t count = 0;  // elements of each channel: 0 to 2^40; at 0 the others are not looked at
  absl::Span<const float> mean;
  absl::Span<const float> variance;  // biased: the mean square distance from the mean
};

// The whole batch. Without any elements, as a batch of zeros.
struct WholeBatch {
  int64_t count = 0;
  std::vector<double> mean;
  std::vector<double> variance;     // biased
  std::vector<double> inverse_std;  // 1 / sqrt(variance + epsilon)
};

// Joins the parts one after the other by the pairwise formula of Chan, Golub and LeVeque ("Updating Formulae and a
// Pairwise Algorithm for Computing Sample Variances", 1979), which unlike a sum of squares loses nothing where the mean
// is large. All parts have `channels` means and variances.
WholeBatch JoinParts(absl::Span<const BatchPart> parts, int64_t channels, double epsilon);

// Every rank calls it, for the forward pass. One all-gather of 8 + 8 * channels bytes of each rank; parts are joined in
// rank order. timeout 0: the communicator's.
absl::StatusOr<WholeBatch> CombineBatch(Communicator& communicator, const BatchPart& part, double epsilon,
                                        std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

// running = (1 - momentum) * running + momentum * batch, where the variance of the batch is the unbiased one, divided
// by count - 1, as PyTorch has it. What a batch does not tell leaves its running value as it is: both without elements,
// the variance with a single one. The spans have as many entries as the batch has channels.
void UpdateRunning(const WholeBatch& batch, double momentum, absl::Span<float> mean, absl::Span<float> variance);

// Every rank calls it, for the backward pass, with its own sums; they become those over all ranks. One all-reduce of
// 16 * channels bytes. timeout as above.
absl::Status SumBatchGradients(Communicator& communicator, absl::Span<float> sum_dy, absl::Span<float> sum_dy_xmu,
                               std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

}  // namespace lockstep

#endif  // REDUCER_BUFFERS_BATCH_STATISTICS_H_
