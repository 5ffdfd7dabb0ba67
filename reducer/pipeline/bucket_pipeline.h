// BucketPipeline: issues the work for full buckets on streams of its own.
//
//   copy in      waits for the gradients' streams, copies those that were not copied when they were marked
//   collective   writes the status trailer and all-reduces data and trailer together; or issues the hook, then all-reduces the trailer
//   copy out     writes the averages back, if the trailer says that there are any
//   optimizer    calls the optimizer on the bucket, where there is one
//
// A bucket in pieces is not copied. Its status trailer travels first, for nothing may be written to a gradient before it is known:
//
//   collective   all-reduces the status trailer; then, unless a rank has failed, the gradients where they lie
//
// Each stage waits for one event of the stage before it, so no copy waits for a collective that it does not need.
// Buckets are launched in the order of the plan, which is the same on all ranks.
//
// On the host (reducer/pipeline/host_pipeline.cc) the streams' threads copy memory and read the status trailer. On a
// device (reducer/pipeline/device_pipeline.cc) kernels do, and a thread of ours follows them.

#ifndef REDUCER_PIPELINE_BUCKET_PIPELINE_H_
#define REDUCER_PIPELINE_BUCKET_PIPELINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "comm/communicator.h"
#include "kernels/bucket_kernels.h"
#include "reducer/pipeline/average.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/pipeline/step_outcome.h"
#include "reducer/plan/parameter.h"
#include "reducer/plan/status_trailer.h"
#include "reducer/report/record.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

// A bucket for the optimizer: the parameters that some rank used, and their averages. Borrowed until it returns.
struct ReducedBucket {
  size_t index = 0;
  size_t count = 0;
  absl::Span<const size_t> parameters;
  absl::Span<const TensorView> gradients;
  const CoalescedGradient* sparse = nullptr;  // of a sparse parameter, instead of a tensor
  Stream* stream = nullptr;                   // on a device: enqueue the step here; null: do it now
};
using OptimizerStep = std::function<absl::Status(const ReducedBucket& bucket)>;

// The error, annotated with `what` and the bucket.
absl::Status InBucket(const Bucket& bucket, const absl::Status& status, absl::string_view what = "");

// THREADS  CopyIn: any. Launch and MarkPoint: one at a time. Everything else: one thread, while no other is in a call.
class BucketPipeline {
 public:
  // The timeout of a rank without inputs: the ranks that compute have no deadline.
  static constexpr std::chrono::hours kJoinedTimeout{24 * 365};

  struct Settings {
    AverageFactors factors;           // of a bucket that gradients are copied or cast into
    AverageFactors factors_in_place;  // of one in pieces that are not cast
    bool divide_by_live = false;      // average over the ranks that have inputs
    bool in_place = false;            // gradients are reduced where they live, or lie: there is little to copy
    bool saves = false;               // what a step may write is copied aside first
    bool barrier_first = false;       // ranks may be without inputs: with a hook, a step begins with a barrier
    std::shared_ptr<CommHook> hook;
    OptimizerStep optimizer;
  };

  // What a pipeline works with. Everything pointed to outlives it, and so do the parameters.
  struct Parts {
    Device* device = nullptr;
    Communicator* communicator = nullptr;
    absl::Span<const Parameter> parameters;
  };

  // Waits for launched buckets, whose collectives end by their deadlines.
  virtual ~BucketPipeline() = default;

  BucketPipeline(const BucketPipeline&) = delete;
  BucketPipeline& operator=(const BucketPipeline&) = delete;

  virtual absl::Status CreateStreams();
  virtual absl::Status CreateEvents(Bucket& bucket);
  // Gives a hook that communicates a communicator of its own, in place of one that failed. Collective if there is such
  // a hook.
  absl::Status RenewHookCommunicator();

  // Everything pointed to belongs to the step until it has been awaited.
  struct Step {
    StepOutcome* outcome = nullptr;
    StepRecord* record = nullptr;
    uint64_t number = 0;
    size_t buckets = 0;
    bool requested = false;                         // this rank has requested a new plan
    bool joined = false;                            // this rank has no inputs, and waits without a deadline
    absl::optional<uint32_t> hash = absl::nullopt;  // of this rank's replica
    // Of a captured step, else null: memory of the host to which each replay copies the last bucket's status trailer.
    // The host follows no replay. Every stream of ours is part of the capture from the first bucket to MakeWait.
    char* replayed_trailer = nullptr;
    // The end of the last bucket of the step before, if that step was not awaited, else null: it has the same memory.
    Event* after = nullptr;
  };
  void Begin(const Step& step);

  // Whether the marking thread copies a gradient that is ready now into its slot, while it is hot in cache. If not, a
  // stream does so later.
  bool copies_at_once() const { return copies_at_once_; }
  // The same for one that is not copied, but saved.
  bool saves_at_once() const { return copies_at_once_ && Saves(); }
  absl::Status CopyIn(Bucket& bucket, size_t slot) const;
  // Writes back what was saved, and waits for that. REQUIRES that nothing of the step is under way.
  absl::Status Restore(absl::Span<const std::unique_ptr<Bucket>> buckets);
  // The bucket's gradients are copied after the stream has reached its current end. Launch calls it for all streams of
  // the bucket.
  absl::Status MarkPoint(Bucket& bucket, Stream& stream) const;
  // Issues all work for the bucket. REQUIRES that none is under way.
  absl::Status Launch(Bucket& bucket);
  // The rest of the step is not for the hook: it is not issued, and ends on every rank.
  void GiveUpHook(const absl::Status& why);
  // Makes the stream wait for all that was launched, and ends our part in a capture.
  virtual absl::Status MakeWait(Stream& stream, Bucket& last) = 0;
  // The event after which the bucket's memory may be used for another.
  virtual Event* ReleasedBy(Bucket& bucket) { return bucket.copied_out.get(); }
  // Waits until all that was launched is done, and the status trailers are read.
  virtual absl::Status Synchronize(Deadline deadline) = 0;
  // The same for the step whose last bucket this is. The next step may be under way.
  virtual absl::Status Await(Bucket& last, Deadline deadline) = 0;
  // Await, or Synchronize if `last` is null. If the communicator ends meanwhile, so does the hook's, which is another one.
  absl::Status AwaitOrEnd(Bucket* last, Deadline deadline);

  // Buckets of the step on which the optimizer was called. After Synchronize.
  const std::vector<size_t>& optimized() const { return stepped_; }

 protected:
  BucketPipeline(const Parts& parts, Settings settings, bool copies_at_once);

  // ---- What differs between host and device. Each is issued in the order of a stream of ours.

  // On the copy-in stream: the staged slots, and what else can be written into the bucket then.
  virtual absl::Status EnqueueCopyIn(Bucket& bucket) = 0;
  // On the collective stream, ahead of a hook: the bucket's turn begins.
  virtual absl::Status EnqueueBegan(Bucket& bucket) = 0;
  virtual absl::Status EnqueueSparse(Bucket& bucket) = 0;
  // On the collective stream, behind the hook, if there is one: the status trailer and the all-reduce.
  virtual absl::Status EnqueueReduction(Bucket& bucket, const CollectiveRequest& request) = 0;
  // The same for a bucket in pieces, and all that follows but the optimizer.
  virtual absl::Status EnqueueInPieces(Bucket&) { return absl::UnimplementedError("pieces are of the host alone"); }
  // On the copy-out stream.
  virtual absl::Status EnqueueCopyOut(Bucket& bucket) = 0;
  // Behind it: the optimizer, and what else is to be done for the bucket.
  virtual absl::Status EnqueueEnd(Bucket& bucket) = 0;

  // ---- What they have in common.

  // Of the streams, in the order in which work flows, so that none waits for one that is gone. By the destructors, once all is done.
  void DestroyStreams();
  // Makes the stream wait for what the optimizer has enqueued or done so far.
  absl::Status WaitForOptimizer(Stream& stream);

  // A rank without inputs saves nothing.
  bool Saves() const { return settings_.saves && !step_.joined; }
  BucketRecord& RecordOf(const Bucket& bucket) const { return step_.record->buckets[bucket.index()]; }
  absl::Status HookFailure(const Bucket& bucket, const absl::Status& status) const;
  void FailHook(Bucket& bucket, const absl::Status& status);
  // Whether a hook, or an exchange of rows, has combined the data, so that only the trailer is all-reduced: by a sum.
  bool ReducesTrailerAlone(const Bucket& bucket) const { return settings_.hook != nullptr || bucket.plan().sparse; }
  // The value of a set entry of the trailer: the reduction turns it into 1.
  float One(const Bucket& bucket) const { return (ReducesTrailerAlone(bucket) ? sum_ : settings_.factors).one; }
  // Calls set(entry) for each entry of the bucket's status trailer that this rank sets. The bucket is about to be sent.
  template <typename Set>
  void SetEntries(const Bucket& bucket, Set&& set) const {
    if (step_.outcome->MarksFailed(bucket.index())) set(StatusTrailer::kFailed);
    if (step_.joined) set(StatusTrailer::kJoined);
    if (!step_.requested) set(StatusTrailer::kUnrequested);
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      if (bucket.slots[s].used) set(StatusTrailer::Used(s));
    }
    if (!bucket.plan().hashed || !step_.hash.has_value()) return;
    for (const size_t entry : StatusTrailer::EntriesOf(*step_.hash, StatusTrailer::Hash(bucket.slots.size()))) {
      set(entry);
    }
  }
  // A request for an all-reduce of the bucket, without what is reduced.
  CollectiveRequest AllReduceFor(const Bucket& bucket) const;
  // Takes the result of the all-reduce, of so many bytes, from Communicator::Enqueue.
  void Reduced(Bucket& bucket, const absl::Status& status, size_t bytes);
  // Takes what the hook has left. On an error, `status` or of the result, the hook has failed.
  void FinishHook(Bucket& bucket, absl::Status status);
  void CallOptimizer(Bucket& bucket, Stream* stream);

  // The stream of the collectives if there is little to copy, since changing threads would take longer; else its own.
  Stream* copy_out() const { return settings_.in_place ? collective_.get() : copy_out_.get(); }

  // Constant after construction.
  Device* const device_;
  Communicator* const communicator_;
  const absl::Span<const Parameter> parameters_;
  const Settings settings_;
  const bool copies_at_once_;
  const AverageFactors sum_{};  // of everything but gradients
  // Constant once created.
  std::unique_ptr<Stream> copy_in_;
  std::unique_ptr<Stream> collective_;
  std::unique_ptr<Stream> copy_out_;  // null where gradients are reduced in place
  // Null where there is no optimizer.
  std::unique_ptr<Stream> optimizer_;
  std::unique_ptr<Event> optimized_;

  // Changed between steps only.
  std::shared_ptr<Communicator> hook_communicator_;
  Step step_;

 private:
  absl::Status Stage(Bucket& bucket);
  absl::Status EnqueueHook(Bucket& bucket);
  // Before the first hook of a step: ranks without inputs await the others here, since the operations of hooks have
  // deadlines.
  absl::Status EnqueueBarrier();
  absl::Status EnqueueAllReduce(Bucket& bucket);
  absl::Status Optimize(Bucket& bucket, Stream* stream);

  bool hook_issue_failed_ = false;  // in this step; of the thread that launches
  std::vector<size_t> stepped_;     // buckets; of the thread that calls the optimizer, until it has been waited for
};

// Of buckets on the host (reducer/pipeline/host_pipeline.cc).
std::unique_ptr<BucketPipeline> MakeHostPipeline(const BucketPipeline::Parts& parts, BucketPipeline::Settings settings);
// Of buckets on a device (reducer/pipeline/device_pipeline.cc), with its kernels, which outlive the pipeline.
std::unique_ptr<BucketPipeline> MakeDevicePipeline(const BucketPipeline::Parts& parts,
                                                   const kernels::BucketKernels* kernels,
                                                   BucketPipeline::Settings settings);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_BUCKET_PIPELINE_H_
