// The collectives of batch normalisation over the elements of all ranks (PyTorch's SyncBatchNorm): one for the forward
// pass, one for the backward pass.
//
// The embedder computes sums over its own part of the batch. It may call these functions between steps on the reducer's
// communicator, or at any time on a duplicate. Every rank calls the same function with the same number of channels. Bad
// arguments are INVALID_ARGUMENT before anything is sent. Everything is combined in double and in rank order, so all
// ranks get the same bits.
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
  int64_t count = 0;  // elements of each channel: 0 to 2^40; if 0, the other fields are ignored
  absl::Span<const float> mean;
  absl::Span<const float> variance;  // biased: the mean square distance from the mean
};

// The whole batch. A batch without elements counts as zeros.
struct WholeBatch {
  int64_t count = 0;
  std::vector<double> mean;
  std::vector<double> variance;     // biased
  std::vector<double> inverse_std;  // 1 / sqrt(variance + epsilon)
};

// Joins the parts in their order. All have `channels` means and variances. The pairwise formula of Chan, Golub and
// LeVeque ("Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979) loses nothing when the
// mean is large, unlike a sum of squares.
WholeBatch JoinParts(absl::Span<const BatchPart> parts, int64_t channels, double epsilon);

// For the forward pass. Collective: one all-gather of 8 + 8 * channels bytes of each rank. Parts are joined in rank
// order. timeout 0: the communicator's.
absl::StatusOr<WholeBatch> CombineBatch(Communicator& communicator, const BatchPart& part, double epsilon,
                                        std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

// running = (1 - momentum) * running + momentum * batch, for each channel. The batch's variance is the unbiased one,
// divided by count - 1, as in PyTorch. A batch without elements changes nothing; one with a single element leaves the
// running variance as it is.
void UpdateRunning(const WholeBatch& batch, double momentum, absl::Span<float> mean, absl::Span<float> variance);

// For the backward pass. Replaces this rank's sums by those over all ranks. Collective: one all-reduce of 16 * channels
// bytes. timeout as above.
absl::Status SumBatchGradients(Communicator& communicator, absl::Span<float> sum_dy, absl::Span<float> sum_dy_xmu,
                               std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

}  // namespace lockstep

#endif  // REDUCER_BUFFERS_BATCH_STATISTICS_H_
