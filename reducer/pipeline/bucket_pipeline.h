// BucketPipeline: issues what happens to a bucket once it is full, on streams of its own.
//
//   copy in      waits for the gradients' streams, copies those that were not copied when they were marked
//   collective   writes the status trailer and all-reduces data and trailer together; or issues the hook, then all-reduces the trailer
//   copy out     writes the averages back, if the trailer says that there are any
//   optimizer    calls the optimizer on the bucket, where there is one
//
// Each waits for one event of the one before it, so no copy waits for a collective that it does not need. Buckets are launched in the
// order of the plan, the same on all ranks.
//
// How memory is copied, and who reads the status trailer, depends on where the buckets are. On the host
// (reducer/pipeline/host_pipeline.h) the streams' threads do both in their turn. On a device (reducer/pipeline/device_pipeline.h) kernels
// copy, and a thread of ours follows them.

#ifndef REDUCER_PIPELINE_BUCKET_PIPELINE_H_
#define REDUCER_PIPELINE_BUCKET_PIPELINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "comm/communicator.h"
#include "reducer/pipeline/average.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/pipeline/step_outcome.h"
#include "reducer/plan/parameter.h"
#include "reducer/report/record.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

// What the optimizer gets of a bucket: the parameters that some rank used, and their averages. Borrowed until it returns.
struct ReducedBucket {
  size_t index = 0;
  size_t count = 0;
  absl::Span<const size_t> parameters;
  absl::Span<const TensorView> gradients;
  const CoalescedGradient* sparse = nullptr;  // instead of a tensor, of a sparse parameter
  Stream* stream = nullptr;                   // of a device: where the step is to be enqueued; null: to be taken now
};
using OptimizerStep = std::function<absl::Status(const ReducedBucket& bucket)>;

// An error in a collective of the bucket.
absl::Status InBucket(const Bucket& bucket, const absl::Status& status);

// THREADS  CopyIn: any. Launch and MarkPoint: one at a time. Everything else: one thread, while no other is in a call.
class BucketPipeline {
 public:
  // The timeout of a rank without inputs: ranks that compute may take as long as they like.
  static constexpr std::chrono::hours kJoinedTimeout{24 * 365};

  struct Settings {
    AverageFactors factors;
    bool divide_by_live = false;  // average over the ranks that have inputs
    bool in_place = false;        // gradients live where they are reduced: there is little to copy
    bool barrier_first = false;   // ranks may be without inputs: with a hook, a step begins with a barrier
    std::shared_ptr<CommHook> hook;
    OptimizerStep optimizer;
  };

  // What a pipeline works with. All that is pointed to outlives it, and so do the parameters.
  struct Parts {
    Device* device = nullptr;
    Communicator* communicator = nullptr;
    absl::Span<const Parameter> parameters;
  };

  // Waits for what was launched, whose collectives end by their own deadlines.
  virtual ~BucketPipeline() = default;

  BucketPipeline(const BucketPipeline&) = delete;
  BucketPipeline& operator=(const BucketPipeline&) = delete;

  virtual absl::Status CreateStreams();
  virtual absl::Status CreateEvents(Bucket& bucket);
  // Collective where there is a hook that communicates: gives it a communicator of its own, in place of one that failed.
  absl::Status RenewHookCommunicator();

  // All that is pointed to is the step's own until it has been awaited.
  struct Step {
    StepOutcome* outcome = nullptr;
    StepRecord* record = nullptr;
    uint64_t number = 0;
    size_t buckets = 0;
    bool planned = false;  // this rank holds the next plan
    bool joined = false;   // this rank has no inputs, and waits for those that do for as long as it takes
    // Of a captured step: memory of the host to which each replay copies the last bucket's status trailer; null else. The host follows no
    // replay. Every stream of ours is part of the capture from the first bucket to MakeWait.
    char* replayed_trailer = nullptr;
    // The end of the last bucket of the step before, if that was not awaited: it has the same memory. Null else.
    Event* after = nullptr;
  };
  void Begin(const Step& step);

  // Whether a gradient that is ready now is copied into its slot by the marking thread, while it is hot in cache, or later by a stream.
  bool copies_at_once() const { return copies_at_once_; }
  absl::Status CopyIn(Bucket& bucket, size_t slot) const;
  // The bucket's gradients are copied after what the stream has now. Launch calls it for all streams of the bucket.
  absl::Status MarkPoint(Bucket& bucket, Stream& stream) const;
  // Issues everything for the bucket, of which nothing is under way.
  absl::Status Launch(Bucket& bucket);
  // Makes the stream wait for all that was launched, and ends our part in a capture.
  virtual absl::Status MakeWait(Stream& stream, Bucket& last) = 0;
  // The event after which the bucket's memory may be used for another.
  virtual Event* ReleasedBy(Bucket& bucket) { return bucket.copied_out.get(); }
  // Waits until all that was launched is done, and the status trailers are read.
  virtual absl::Status Synchronize(Deadline deadline) = 0;
  // The same of the step of which this is the last bucket, while the next one may be under way.
  virtual absl::Status Await(Bucket& last, Deadline deadline) = 0;

  // Buckets of the step on which the optimizer was called. After Synchronize.
  const std::vector<size_t>& optimized() const { return optimized_; }

 protected:
  BucketPipeline(const Parts& parts, Settings settings, bool copies_at_once);

  // ---- What depends on where buckets are. Each is issued in the order of a stream of ours.

  // On the copy-in stream: the staged slots, and whatever else can be put into the bucket then.
  virtual absl::Status EnqueueCopyIn(Bucket& bucket) = 0;
  // On the collective stream, ahead of a hook: the bucket's turn begins.
  virtual absl::Status EnqueueBegan(Bucket& bucket) = 0;
  virtual absl::Status EnqueueSparse(Bucket& bucket) = 0;
  // On the collective stream, behind the hook, if there is one: the status trailer and the all-reduce.
  virtual absl::Status EnqueueReduction(Bucket& bucket, const CollectiveRequest& request) = 0;
  // On the copy-out stream.
  virtual absl::Status EnqueueCopyOut(Bucket& bucket) = 0;
  // Behind it: the optimizer, and what else is to be done for the bucket.
  virtual absl::Status EnqueueEnd(Bucket& bucket) = 0;

  // ---- What they have in common.

  BucketRecord& RecordOf(const Bucket& bucket) const { return step_.record->buckets[bucket.index()]; }
  absl::Status HookFailure(const Bucket& bucket, const absl::Status& status) const;
  void FailHook(Bucket& bucket, const absl::Status& status);
  // What a hook or the rows of a sparse gradient have brought together needs an all-reduce of the trailer alone: a sum.
  bool ReducesTrailerAlone(const Bucket& bucket) const { return settings_.hook != nullptr || bucket.plan().sparse; }
  // What a set entry of the trailer is, so that the reduction adds one to it.
  float One(const Bucket& bucket) const { return (ReducesTrailerAlone(bucket) ? sum_ : settings_.factors).one; }
  // How the all-reduce went, as Communicator::Enqueue tells it.
  void Reduced(Bucket& bucket, const absl::Status& status);
  // What a hook that ended so has left is looked at; on an error the hook has failed.
  void FinishHook(Bucket& bucket, absl::Status status);
  void CallOptimizer(Bucket& bucket, Stream* stream);

  // One of its own, or that of the collectives where there is little to copy: going over to another thread takes longer then.
  Stream* copy_out() const { return settings_.in_place ? collective_.get() : copy_out_.get(); }

  // Constant after construction.
  Device* const device_;
  Communicator* const communicator_;
  const absl::Span<const Parameter> parameters_;
  const Settings settings_;
  const bool copies_at_once_;
  const AverageFactors sum_{};  // of what is no gradient
  // Constant once created.
  std::unique_ptr<Stream> copy_in_;
  std::unique_ptr<Stream> collective_;
  std::unique_ptr<Stream> copy_out_;   // null where gradients are reduced in place
  std::unique_ptr<Stream> optimizer_;  // null where there is no optimizer

  // Changed between steps only.
  std::unique_ptr<Communicator> hook_communicator_;
  Step step_;

 private:
  absl::Status Stage(Bucket& bucket);
  absl::Status EnqueueHook(Bucket& bucket);
  // Before the first hook of a step where ranks may have no inputs: those await the others here, not in the hook, whose operations have
  // deadlines.
  absl::Status EnqueueBarrier();
  absl::Status EnqueueAllReduce(Bucket& bucket);
  absl::Status Optimize(Bucket& bucket, Stream* stream);

  bool hook_issue_failed_ = false;  // in this step; of the thread that launches
  std::vector<size_t> optimized_;   // of the thread that calls the optimizer, until it has been waited for
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_BUCKET_PIPELINE_H_
