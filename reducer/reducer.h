// Reducer: averages the gradients of a replicated model across ranks while the backward pass still computes.
//
//   state        call            next
//   idle         BeginBackward   armed (or accumulating, without sync)
//   armed        MarkReady       armed: a gradient is copied into its bucket; a full bucket is launched
//   armed        EndBackward     idle: averages are back in the gradients
//   accumulating MarkReady       accumulating: nothing but checks
//   accumulating EndBackward     idle
//
// One gradient's way. MarkReady notes where the gradient is. Ready now (null stream): it is copied into its bucket at once, scaled
// on the way, while it is hot in cache. Ready on a stream: when the bucket is full, the copy-in stream waits for one event
// per (bucket, stream) and copies all of it. A bucket is launched when it is full and all before it are, so every rank launches
// the same collectives in the same order whatever the order of its gradients (reducer/bucket_pipeline.h).
//
// Unused parameters. Behind each bucket's data lie bits that say for which parameters this rank has a gradient; the all-reduce counts
// them. The gradient of a parameter that no rank has used stays as it is. Who has used it in some backward since the last
// synchronised one has: in find_unused, the gradients of backwards without sync stay borrowed until the next one with.
//
// A local failure never desynchronises. When gradients are missing at EndBackward, the rank still launches every bucket left, with
// zeros for what is missing and with a mark behind the data, and leaves a note saying what was missing. Every rank sees the
// mark in the sum, reads the notes, and returns the same FAILED_PRECONDITION; the next step may be tried. A stream with an error,
// a changed graph and a failed hook are told to the others in the same way. Only a rank that cannot launch a bucket at all aborts the
// communicator.
//
// Threads. MarkReady may be called by several threads at once; they have returned when EndBackward is called. Everything else is
// called by one thread at a time. Between BeginBackward and EndBackward the communicator belongs to the reducer. No lock is held
// while something is copied or launched.
//
// Memory. One flat buffer per bucket, aligned to 256 bytes, in memory of the communicator's allocator, allocated at creation and
// released with the reducer: another plan is laid out in the same memory. Where fewer buckets are to be in memory at a time, they take
// turns: bucket b has that of bucket b - n, and its gradients stay where they are until that one has been copied out. Gradients and
// their streams stay the embedder's, borrowed from MarkReady until the backward's end has passed, on its stream if it has one.

#ifndef REDUCER_REDUCER_H_
#define REDUCER_REDUCER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/mutex.h"
#include "base/tensor_view.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
#include "reducer/average.h"
#include "reducer/bucket.h"
#include "reducer/bucket_pipeline.h"
#include "reducer/bucket_plan.h"
#include "reducer/comm_hook.h"
#include "reducer/marks.h"
#include "reducer/parameter.h"
#include "reducer/replanner.h"
#include "reducer/statistics.h"
#include "reducer/step_outcome.h"

namespace lockstep {

struct ReducerOptions {
  // Caps in bytes, used up one by one per dtype and device, the last repeated. Default: a small first bucket, so that
  // communication starts early, then 25 MiB.
  std::vector<size_t> bucket_caps_bytes = {size_t{1} << 20, size_t{25} << 20};
  CapsFrom caps_from = CapsFrom::kFirst;
  size_t buckets_in_memory_max = 0;  // 0: all of them
  Average average = Average::kBefore;
  double predivide_factor = 1;  // f of Average::kPredivide: finite, above zero
  bool overlap = true;          // false: every bucket is launched by EndBackward, for comparison

  bool find_unused = false;   // not every parameter is used in every backward
  bool static_graph = false;  // every backward is like the first one: see reducer/marks.h

  // Gradients live in the buckets: see GradientView. Not together with buckets that take turns.
  bool gradient_as_bucket_view = false;

  // Once the order in which gradients become ready has been seen, buckets are planned anew, by rank 0's order. Without it only after
  // RequestReplan. In bucket views not by itself, since views move.
  bool replan = true;
  // Of an earlier run (ExportPlan): buckets as they were then. Nothing is planned anew without a request.
  std::string plan;

  // What real floats are sent as, f16 or bf16: half the bytes of f32, and each rank's contribution and the sum round to it.
  absl::optional<DType> compress;
  // Instead of the all-reduce; `average` is then the hook's affair. Null: none.
  std::shared_ptr<CommHook> hook;
  // Called for each bucket as soon as it is reduced, on a stream of its own, while others are still under way. Afterwards its gradients
  // are not borrowed any more.
  OptimizerStep optimizer;

  // Parameters whose gradients are reduced when that of the trigger is ready, with what has been marked of them until then, in whichever
  // backward; what was not marked counts as unused.
  std::vector<size_t> delayed;
  size_t delayed_trigger = 0;
};

struct BackwardOptions {
  bool sync = true;  // false: gradients only accumulate in the embedder's memory
  // In find_unused: the parameters that will not be marked. Without it those that were not marked by the end.
  absl::optional<absl::Span<const size_t>> unused = absl::nullopt;
};

class Reducer {
 public:
  // Every rank calls it. Compares the tables and options across ranks; a difference is the same FAILED_PRECONDITION on all of them. A
  // rank whose own arguments are bad (INVALID_ARGUMENT) or do not fit in memory (RESOURCE_EXHAUSTED) returns that, the others that
  // it did. The communicator must outlive the reducer.
  static absl::StatusOr<std::unique_ptr<Reducer>> Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options);

  // Waits for what was launched, whose collectives end by their own deadlines. Abort the communicator first to cut that short.
  ~Reducer();

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // FAILED_PRECONDITION unless idle, or for unused parameters that cannot be named here; the communicator's error if it is over.
  // Goes over to a new plan when all ranks hold it.
  absl::Status BeginBackward(const BackwardOptions& options);

  // The gradient of a parameter is final: now (null stream), or when `stream` reaches this point. INVALID_ARGUMENT for an index out
  // of range or a gradient that does not match the table; FAILED_PRECONDITION outside a backward, or when it was marked before, is
  // unused, or does not fit a static graph.
  absl::Status MarkReady(size_t index, const TensorView& gradient, Stream* stream);
  // The average goes to `target`, of any real float dtype (complex: of the same), instead; `gradient` is only read. For gradients in
  // another precision than what the optimizer wants. In backwards without sync `target` counts for nothing.
  absl::Status MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream);

  // Null stream: returns when the averages are in the gradients. Otherwise returns when everything is issued, and makes `stream`
  // wait for it; errors of other ranks are then told by the next BeginBackward.
  absl::Status EndBackward(Stream* stream);

  // After a synchronised backward, until the next one begins: where the average of a parameter is. No data: no rank used it. Where
  // another rank did and this one did not, it lies in memory of the reducer's. Waits for the backward's end.
  absl::StatusOr<TensorView> AverageOf(size_t index);

  // In bucket views: where the gradient lives. It is an alias of the bucket's memory with the table's strides (row-major where those
  // leave gaps), kept until a new plan: then plan_version() grows in BeginBackward, gradients are moved, and views must be asked for
  // again. A gradient elsewhere may be marked too: it is copied there and back.
  absl::StatusOr<TensorView> GradientView(size_t index) const;

  // Every rank calls it: from the next synchronised backward's order buckets are planned anew, and used once all ranks have the plan.
  absl::Status RequestReplan();
  // For ReducerOptions::plan. Of the plan in use.
  std::string ExportPlan() const;
  // 1 for the first plan. Grows in BeginBackward only.
  int64_t plan_version() const { return plan_version_; }

  // Copies the root's tensors to every rank, coalesced into messages of up to 250 MiB. Blocks.
  absl::Status Broadcast(absl::Span<const TensorView> tensors, Rank root);

  // Borrowed until the next BeginBackward.
  const BucketPlan& plan() const { return plan_; }
  ReducerStatistics statistics() const;

 private:
  enum class State { kIdle, kArmed, kAccumulating };

  // As it was marked.
  struct Gradient {
    TensorView data;
    TensorView target;
    Stream* stream = nullptr;
  };

  Reducer(Communicator* communicator, std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan);
  // Collective, both: they end well on every rank or on none, but for what this rank alone lacks in the first one.
  absl::Status Allocate();
  absl::Status Connect();
  absl::Status AllocateMemory();
  // Bytes of the regions of memory with which a plan's buckets take turns.
  std::vector<size_t> Regions(const BucketPlan& plan) const;
  bool Fits(const BucketPlan& plan) const;
  // Lays the plan's buckets out in the memory.
  absl::Status MakeBuckets();
  // Goes over to another plan that fits.
  absl::Status Adopt(BucketPlan plan);

  absl::Status CheckReduced(size_t index, absl::string_view call) const;
  absl::Status CheckGradient(size_t index, const TensorView& gradient) const;
  absl::Status CheckTarget(size_t index, const TensorView& target) const;
  // FAILED_PRECONDITION for what lies in the buckets, and not where the parameter has its view.
  absl::Status CheckPlace(size_t index, const TensorView& tensor) const;
  bool LayoutFits(size_t index, const TensorView& gradient) const;
  bool LiesInBuckets(const void* data) const;
  char* ViewAt(size_t index) const;  // null where there are none

  absl::Status MarkChecked(size_t index, const Gradient& gradient) ABSL_LOCKS_EXCLUDED(mu_);
  // Puts a gradient, or none (null), into its slot. Then the bucket may be full.
  void Fill(size_t index, const Gradient* gradient) ABSL_LOCKS_EXCLUDED(mu_);
  // With what the window has of it, if anything.
  void FillFromWindow(size_t index) ABSL_LOCKS_EXCLUDED(mu_);
  void FillDelayed() ABSL_LOCKS_EXCLUDED(mu_);
  // Launches full buckets in order, for as long as there are any. One thread at a time does; the others leave it to that one.
  void LaunchFull() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the step's last copy and says how the step went, the same on every rank.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FinishInFlight() ABSL_LOCKS_EXCLUDED(mu_);
  // What to say of a step that failed.
  std::string Remedy() const;

  // Constant after construction.
  Communicator* const communicator_;
  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;
  const PlanRules rules_;
  std::vector<bool> has_gaps_;  // by parameter: its gradient's strides leave gaps
  Device* const device_;
  const bool holds_last_bucket_;  // a complaint may come after every gradient has: the last bucket is to carry it

  // Constant after creation.
  std::unique_ptr<StepOutcome> outcome_;
  std::unique_ptr<Replanner> replanner_;
  std::unique_ptr<SymmetricBuffer> memory_;
  std::unique_ptr<SymmetricBuffer> views_;  // where gradients live, unless that is `memory_`; null without bucket views

  // Changed between backwards only. Of a bucket, what MarkReady counts is guarded by mu_.
  BucketPlan plan_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  int64_t plan_version_ = 1;
  bool replan_due_ = false;  // all ranks hold the next plan
  bool hook_failed_ = false;
  std::unique_ptr<BucketPipeline> pipeline_;  // behind the buckets: it ends first

  // Guarded by mu_.
  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kIdle;
  Marks marks_ ABSL_GUARDED_BY(mu_);
  // By parameter: gradients of backwards without sync, delayed ones, and those of a static graph's first backward.
  std::vector<Gradient> window_ ABSL_GUARDED_BY(mu_);
  bool delayed_filled_ ABSL_GUARDED_BY(mu_) = false;
  size_t next_bucket_ ABSL_GUARDED_BY(mu_) = 0;  // the first not launched
  bool launching_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool in_flight_ ABSL_GUARDED_BY(mu_) = false;  // the last EndBackward left its result to the next call
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;       // synchronised backwards begun
};

}  // namespace lockstep

#endif  // REDUCER_REDUCER_H_
