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

// Launches the full buckets of a step, one thread at a time, without a lock. A bucket is launched when it and all
// buckets before it are full. So every rank launches the same collectives in the same order, whatever the order of its
// gradients. A thread that calls Run while another thread is in it returns; the other thread then looks again.
class LaunchQueue {
 public:
  // A step begins. Buckets before `end` may be launched. The buckets outlive the step. REQUIRES no other call at the
  // same time
  void Begin(absl::Span<const std::unique_ptr<Bucket>> buckets, size_t end) {
    buckets_ = buckets;
    next_ = 0;
    end_.store(end, std::memory_order_relaxed);
  }

  // From the next Run on, all buckets may be launched.
  void Open() { end_.store(buckets_.size(), std::memory_order_relaxed); }

  // Calls launch(bucket) for every bucket that may be launched. If it returns false, no later bucket of this step is
  // launched. THREADS any; to be called after each bucket that became full. Calls of `launch` come one after the other.
  template <typename Launch>
  void Run(const Launch& launch) {
    // The count orders the calls: whoever takes it to zero has seen what all the others wrote before theirs.
    if (callers_.fetch_add(1, std::memory_order_acq_rel) != 0) return;
    int seen = 1;
    while (seen > 0) {
      while (next_ < end_.load(std::memory_order_relaxed) && buckets_[next_]->full()) {
        Bucket& bucket = *buckets_[next_++];
        if (!launch(bucket)) next_ = buckets_.size();
      }
      seen = callers_.fetch_sub(seen, std::memory_order_acq_rel) - seen;
    }
  }

 private:
  absl::Span<const std::unique_ptr<Bucket>> buckets_;
  std::atomic<size_t> end_{0};
  std::atomic<int> callers_{0};
  size_t next_ = 0;  // the first not launched; of the thread in Run
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
  // From the next LaunchFull on, all buckets may be launched.
  void OpenAll() { launches_.Open(); }

  struct Filling {
    Bucket* bucket = nullptr;
    size_t slot = 0;
    bool copies = false;  // now, by Complete
  };
  Filling Fill(size_t index, const GradientRef& gradient);
  // The slot's memory is ready on the stream, or now (null). A slot without a gradient gets zeros.
  Filling Stage(size_t index, Stream* stream);

  // Whether the bucket is full now.
  bool Complete(const Filling& filling);
  // Call it after a bucket became full. A bucket that cannot be launched aborts the communicator; in a captured step it
  // only ends the launches.
  void LaunchFull();

 private:
  Step step_;
  LaunchQueue launches_;
};

}  // namespace lockstep

#endif  // REDUCER_BUCKET_FILLER_H_
