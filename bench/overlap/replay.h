// Replay: one rank's part of a model's training step without the training; and what the reducer costs in it: time and memory.

#ifndef BENCH_OVERLAP_REPLAY_H_
#define BENCH_OVERLAP_REPLAY_H_

#include <cstddef>
#include <cstdint>
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
#include "reducer/plan/bucket_plan.h"
#include "reducer/reducer.h"

namespace lockstep::bench {

// Where gradients are and what computes them.
struct ReplayPlace {
  Device* device = HostDevice();
  Stream* stream = nullptr;  // of the device; null: the calling thread computes, which only the host allows
  // The reducer also compares parameters, which are as large as the gradients, in memory of the host.
  bool compares_replicas = false;
};

// The ranks of a process group make the same calls in the same order. What is timed begins behind a barrier, and its time is that of the
// slowest rank. With a stream gradients and averages are ready in its order, and times are the device's, as the host sees them.
//
// Used by one thread.
class Replay {
 public:
  // Makes gradients and a reducer of them. Errors are those of Reducer::Create(). The model, the stream and the group's communicator,
  // which is one for the device, must outlive the replay.
  static absl::StatusOr<std::unique_ptr<Replay>> Create(const ProcessGroup& group, const ModelTable& model,
                                                        const ReducerOptions& options, const ReplayPlace& place = {});
  ~Replay();

  const Reducer& reducer() const { return *reducer_; }

  // For MakeBusyComputation(): the gradients, in the device's memory, and what this rank writes into them.
  std::vector<absl::Span<float>> gradients() const { return gradients_; }
  float own_value() const { return static_cast<float>(group_.rank().value() + 1); }

  // Seconds of a step that computes and sends nothing, and when in it each bucket is ready.
  struct ComputeTimes {
    double seconds = 0;
    std::vector<double> ready_seconds;  // by bucket
  };
  absl::StatusOr<ComputeTimes> ComputeOnly(Computation& computation, int steps);

  // Where the vectors of CommunicationOnly() are: in memory like any framework's, or in that of the communicator's allocator. On a device
  // both are the latter's.
  enum class WireMemory { kOrdinary, kAllocator };
  // The all-reduce of each bucket alone, one after the other, as one flat vector. `background`: the calls leave the core to computation, as
  // a reducer's do (CollectiveRequest::background).
  struct WireTimes {
    std::vector<double> seconds;            // by bucket
    std::vector<double> processor_seconds;  // of all threads of the rank's process
  };
  absl::StatusOr<WireTimes> CommunicationOnly(WireMemory memory, int steps, bool background);

  // Seconds of one all-reduce of tensors like all gradients, or of one flat vector of their size, in ordinary memory that is made anew
  // for each measurement: how fast pages are is luck, and would stay with them for the whole run.
  absl::StatusOr<double> AllReduceAll(bool as_list);

  // Seconds of a step. Without overlap gradients are marked ready when all are computed.
  absl::StatusOr<double> Step(Computation& computation, int steps, bool overlap);

  // Runs a step on gradients that tell the ranks apart. DATA_LOSS if one is not the average afterwards.
  absl::Status CheckedStep();

 private:
  Replay(const ProcessGroup& group, const ModelTable& model, const ReplayPlace& place);
  absl::Status AllocateGradients();
  absl::Status FindGradientsInBuckets();
  // Zeros, for all buckets. The first all-reduce of them, in place, has written every page.
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> AllocateWire(WireMemory memory) const;
  absl::Status Begin();
  absl::Status MarkReady(size_t parameter) { return reducer_->MarkReady(parameter, views_[parameter], place_.stream); }
  // These two wait until it is done.
  absl::Status FillGradient(size_t parameter, float value);
  absl::Status CheckGradient(size_t parameter, float average);
  absl::Status CopyNow(void* target, const void* source, size_t bytes);

  const ProcessGroup group_;
  const ModelTable& model_;
  const ReplayPlace place_;
  // The gradients where they are not in the buckets, each beginning a multiple of 256 bytes behind the first.
  float* memory_ = nullptr;
  std::vector<float> on_host_;                // a copy of one gradient
  std::vector<absl::Span<float>> gradients_;  // by parameter
  std::vector<TensorView> views_;             // the same
  std::vector<std::vector<float>> weights_;   // by parameter, if replicas are compared
  std::vector<const void*> replicas_;         // where those are
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<SymmetricBuffer> wire_memory_[2];  // by WireMemory, from the first CommunicationOnly() in it on
};

// Medians over steps, in seconds.
struct ReducerOverhead {
  int buckets = 0;
  double mark_ready_seconds = 0;  // all calls of MarkReady() in a step together
  double step_seconds = 0;        // those, BeginBackward() and EndBackward(), with nothing computed in between
};

// Measures a reducer in a world of one. It has as many parameters as `plan`, and as many in each bucket, but of one float each. So
// nothing is copied, and an all-reduce is a call that returns at once. What is left are checks, counts, and handing buckets from thread
// to thread.
absl::StatusOr<ReducerOverhead> MeasureReducerOverhead(const BucketPlan& plan, int steps);

// Memory of this process, as the kernel counts it (Pss of smaps_rollup): a page that n processes have counts for 1/n. UNAVAILABLE where
// the kernel does not tell.
absl::StatusOr<int64_t> ProportionalBytes();

}  // namespace lockstep::bench

#endif  // BENCH_OVERLAP_REPLAY_H_
