// Replay: a model's training step without the training. One rank's part of it.
//
// The ranks of a process group make the same calls in the same order. What is timed begins behind a barrier and counts as the
// slowest rank's. Used by one thread.
//
// Gradients are on a device. Where a stream computes them, they are ready in its order, and so are the averages; times are
// then those of the device, as the host sees them.

#ifndef BENCH_OVERLAP_REPLAY_H_
#define BENCH_OVERLAP_REPLAY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/tensor_view.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "bench/ranks.h"
#include "comm/symmetric_buffer.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace bench {

// Where gradients are and what computes them.
struct ReplayPlace {
  Device* device = HostDevice();
  Stream* stream = nullptr;  // of the device; null: the caller, which only the host allows
};

class Replay {
 public:
  // With gradients and a reducer of them, whose errors it has. The group's communicator, which is one for the device, the
  // model and the stream must outlive it.
  static absl::StatusOr<std::unique_ptr<Replay>> Create(const ProcessGroup& group, const ModelTable& model,
                                                        const ReducerOptions& options, const ReplayPlace& place = {});
  ~Replay();

  const Reducer& reducer() const { return *reducer_; }

  // What Computation is made of: memory of the device's.
  std::vector<absl::Span<float>> gradients() const { return gradients_; }
  float own_value() const { return static_cast<float>(group_.rank().value() + 1); }

  // Seconds of a step that computes and sends nothing, and when in it each bucket is ready.
  struct ComputeTimes {
    double seconds = 0;
    std::vector<double> ready_seconds;  // by bucket
  };
  absl::StatusOr<ComputeTimes> ComputeOnly(Computation& computation, int steps);

  // The all-reduce of each bucket alone, one after the other, in memory as the reducer's. `background`: as whoever
  // shares its core with computation asks for it.
  struct WireTimes {
    std::vector<double> seconds;            // by bucket
    std::vector<double> processor_seconds;  // of all threads of the rank's process
  };
  absl::StatusOr<WireTimes> CommunicationOnly(int steps, bool background);

  // Seconds of a step. Without overlap the reducer is told of the gradients when all are computed.
  absl::StatusOr<double> Step(Computation& computation, int steps, bool overlap);

  // A step on gradients that tell the ranks apart; DATA_LOSS when one is not the average afterwards.
  absl::Status CheckedStep();

 private:
  Replay(const ProcessGroup& group, const ModelTable& model, const ReplayPlace& place);
  absl::Status CreateReducer(const ReducerOptions& options);
  absl::Status AllocateGradients();
  absl::Status FindGradientsInBuckets();
  absl::Status MarkReady(size_t parameter) { return reducer_->MarkReady(parameter, views_[parameter], place_.stream); }
  // These return when it is done.
  absl::Status FillGradient(size_t parameter, float value);
  absl::Status CheckGradient(size_t parameter, float average);
  absl::Status CopyNow(void* target, const void* source, size_t bytes);
  absl::Status StepOnce(Computation& computation, bool overlap);

  const ProcessGroup group_;
  const ModelTable& model_;
  const ReplayPlace place_;
  // The gradients where they are not in the buckets, each beginning a multiple of 256 bytes behind the first.
  float* memory_ = nullptr;
  std::vector<float> on_host_;                // a copy of one gradient
  std::vector<absl::Span<float>> gradients_;  // by parameter
  std::vector<TensorView> views_;             // the same
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<SymmetricBuffer> wire_memory_;  // of CommunicationOnly, from its first call on
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_REPLAY_H_
