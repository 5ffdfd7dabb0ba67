// BucketPipeline: issues what happens to a bucket once it is full, on streams of its own.
//
//   copy in      waits for the gradients' streams, copies those that were not copied when they were marked
//   collective   writes the tail; all-reduces data and tail together, or issues the hook and then all-reduces the tail
//   copy out     writes the averages back, where the tail says that there are any
//   optimizer    calls the optimizer on the bucket, where there is one
//
// Each waits for one event of the one before it, so no copy waits for a collective that it does not need. Buckets are launched in the
// order of the plan, the same on all ranks.

#ifndef REDUCER_BUCKET_PIPELINE_H_
#define REDUCER_BUCKET_PIPELINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/tensor_view.h"
#include "comm/communicator.h"
#include "reducer/average.h"
#include "reducer/bucket.h"
#include "reducer/comm_hook.h"
#include "reducer/parameter.h"
#include "reducer/sparse_gradient.h"
#include "reducer/step_outcome.h"
#include "reducer/step_recorder.h"

namespace lockstep {

// What the optimizer gets of a bucket: the parameters that some rank used, and their averages. Borrowed until it returns.
struct ReducedBucket {
  size_t index = 0;
  size_t count = 0;
  absl::Span<const size_t> parameters;
  absl::Span<const TensorView> gradients;
  const CoalescedGradient* sparse = nullptr;  // instead of a tensor, of a sparse parameter
};
using OptimizerStep = std::function<absl::Status(const ReducedBucket& bucket)>;

// Launch is called by one thread at a time, and everything else by one that has nothing under way but what it says.
class BucketPipeline {
 public:
  // A rank without inputs waits for ranks that compute, and those may do so for as long as they like.
  static constexpr std::chrono::hours kJoinedTimeout{24 * 365};

  struct Settings {
    AverageFactors factors;
    bool divide_by_live = false;  // an average is that of the ranks which have inputs, not of all
    bool opens_steps = false;     // ranks may be without inputs, and wait for a step to begin
    std::shared_ptr<CommHook> hook;
    OptimizerStep optimizer;
  };

  // All that is pointed to outlives this, and so do the parameters.
  BucketPipeline(Device* device, Communicator* communicator, absl::Span<const Parameter> parameters,
                 StepOutcome* outcome, StepRecorder* recorder, Settings settings);
  // Waits for what was launched, whose collectives end by their own deadlines.
  ~BucketPipeline();

  BucketPipeline(const BucketPipeline&) = delete;
  BucketPipeline& operator=(const BucketPipeline&) = delete;

  absl::Status CreateStreams();
  absl::Status CreateEvents(Bucket& bucket);
  // Collective where there is a hook that communicates: gives it a communicator of its own, in place of one that failed.
  absl::Status RenewHookCommunicator();

  struct Step {
    uint64_t number = 0;
    size_t buckets = 0;
    bool planned = false;  // this rank holds the next plan
    bool joined = false;   // this rank has no inputs, and waits for those that do for as long as it takes
  };
  void Begin(const Step& step);

  // A gradient into its slot, on the calling thread.
  absl::Status CopyIn(Bucket& bucket, size_t slot) const { return bucket.CopyIn(slot, settings_.factors.copy_in); }
  // Issues all of the above for the bucket, of which nothing is under way.
  absl::Status Launch(Bucket& bucket);
  // Makes the stream wait for all that was launched.
  absl::Status MakeWait(Stream& stream, Bucket& last);
  absl::Status Synchronize(Deadline deadline);

  // Buckets of the step on which the optimizer was called. After Synchronize.
  const std::vector<size_t>& optimized() const { return optimized_; }

 private:
  absl::Status Stage(Bucket& bucket);
  absl::Status EnqueueReduction(Bucket& bucket);
  absl::Status EnqueueSparse(Bucket& bucket);
  absl::Status EnqueueHook(Bucket& bucket);
  // Before the first hook of a step where ranks may have no inputs: those await the others here, not in the hook, whose operations have
  // deadlines.
  absl::Status EnqueueOpening();
  absl::Status EnqueueOptimizer(Bucket& bucket);
  absl::Status EnqueueAllReduce(Bucket& bucket, size_t begin, size_t end, const AverageFactors& factors);
  // On the streams' threads.
  void WriteTail(Bucket& bucket, float one);
  void GatherSparse(Bucket& bucket);
  void FinishHook(Bucket& bucket);
  void FailHook(Bucket& bucket, const absl::Status& status);
  absl::Status CopyOut(Bucket& bucket);
  double CopyOutFactor(int joined) const;
  absl::Status Optimize(Bucket& bucket);

  // Constant after construction.
  Device* const device_;
  Communicator* const communicator_;
  const absl::Span<const Parameter> parameters_;
  StepOutcome* const outcome_;
  StepRecorder* const recorder_;
  const Settings settings_;
  const AverageFactors sum_{};  // of what is no gradient
  // Constant once created.
  std::unique_ptr<Stream> copy_in_;
  std::unique_ptr<Stream> collective_;
  std::unique_ptr<Stream> copy_out_;
  std::unique_ptr<Stream> optimizer_;  // null where there is no optimizer
  std::unique_ptr<Event> optimized_event_;

  // Changed between steps only.
  std::unique_ptr<Communicator> hook_communicator_;
  Step step_;

  bool hook_issue_failed_ = false;  // in this step; of the thread that launches
  std::vector<size_t> optimized_;   // of the optimizer stream's thread, until it has been waited for
};

}  // namespace lockstep

#endif  // REDUCER_BUCKET_PIPELINE_H_
