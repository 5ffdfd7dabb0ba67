// BucketFiller: puts the gradients of a step into their slots, and launches buckets that are full.
//
//   Fill or Stage   notes the gradient of a slot, or that it has none
//   Complete        copies it, if this thread is to do that; the bucket may be full then
//   LaunchFull      launches full buckets in the order of the plan

#ifndef REDUCER_BUCKET_FILLER_H_
#define REDUCER_BUCKET_FILLER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "comm/communicator.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/bucket_pipeline.h"
#include "reducer/pipeline/step_outcome.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/report/record.h"

namespace lockstep {

// A gradient as it was marked.
struct Gradient {
  TensorView data;
  TensorView target;
  absl::Span<const int64_t> rows;  // of a sparse gradient
  Stream* stream = nullptr;
};
// The same by reference, so that a mark copies its views once.
struct GradientRef {
  const TensorView& data;
  const TensorView& target;
  absl::Span<const int64_t> rows;
  Stream* stream;
};

// Fill, Stage and Begin are externally synchronised; Complete and LaunchFull may be called by several threads at once.
class BucketFiller {
 public:
  // Everything pointed to outlives the step.
  struct Step {
    const BucketPlan* plan = nullptr;
    absl::Span<const std::unique_ptr<Bucket>> buckets;
    BucketPipeline* pipeline = nullptr;
    Communicator* communicator = nullptr;
    StepOutcome* outcome = nullptr;
    StepRecord* record = nullptr;
    bool captured = false;
  };
  // Buckets before `launch_end` may be launched.
  void Begin(const Step& step, size_t launch_end);
  // From the next LaunchFull on, all buckets may be launched. Relaxed here, in Begin and in LaunchFull: what a launch reads is ordered by
  // Bucket::full(), by the lock of StepOutcome and by the count of threads in LaunchFull.
  void OpenAll() { launch_end_.store(step_.buckets.size(), std::memory_order_relaxed); }

  struct Filling {
    Bucket* bucket = nullptr;
    size_t slot = 0;
    bool copies = false;  // or saves, now, by Complete
  };
  Filling Fill(size_t index, const GradientRef& gradient);
  // The slot's memory is ready on the stream, or now (null). A slot without a gradient gets zeros.
  Filling Stage(size_t index, Stream* stream);

  // Whether the bucket is full now.
  bool Complete(const Filling& filling);
  // Launches the buckets that are full and may be launched. Call it after a bucket became full. A bucket is launched when it and all
  // buckets before it are full: so every rank launches the same collectives in the same order, whatever the order of its gradients. A
  // bucket that cannot be launched aborts the communicator; in a captured step it only ends the launches.
  // THREADS  no lock: one thread at a time launches; a thread that comes meanwhile returns, and the other looks again
  void LaunchFull();
  // The step fails on every rank, with `why` in the error: launches the buckets that are left, with zeros. Reads no gradient, and issues no
  // hook.
  // REQUIRES  no other call at the same time
  void GiveUp(const absl::Status& why);

 private:
  // Whether the buckets behind it may be launched.
  bool Launch(Bucket& bucket);

  Step step_;
  std::atomic<size_t> launch_end_{0};
  std::atomic<int> launchers_{0};  // threads in LaunchFull
  size_t next_ = 0;                // the first bucket that is not launched; of the thread that launches
};

}  // namespace lockstep

#endif  // REDUCER_BUCKET_FILLER_H_
