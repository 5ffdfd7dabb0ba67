// Reducer: averages the gradients of a replicated model across ranks while the backward pass still computes.
//
//   state        call            next
//   idle         BeginBackward   armed (or accumulating, without sync)
//   armed        MarkReady       armed: a full bucket is launched
//   armed        EndBackward     idle: averages are back in the gradients
//   accumulating MarkReady       accumulating: nothing but checks
//   accumulating EndBackward     idle
//
// THREADS  Several threads may call MarkReady at once; their calls have returned when EndBackward is called. One thread at a time calls
//          everything else. No lock is held while something is copied or launched; an event of a caller's own stream is recorded
//          with the lock held, and so is what a captured step begins with.
//
// One gradient's way. On the host gradients are reduced where they lie: a bucket is a list of pieces. For gradients that are ready on
// streams the copy-in stream waits for one event per (bucket, stream) once the bucket is full. Full buckets are launched in the order of
// the plan (reducer/bucket_filler.h, reducer/pipeline/bucket_pipeline.h). Where gradients are copied instead (WhyCopied), one that is ready
// now (null stream) is copied into its bucket by the marking thread, scaled on the way, while it is hot in cache; the copy-in stream copies
// the others.
//
// Unused parameters. The status trailer of a bucket says for which parameters this rank has a gradient; an all-reduce counts
// them. The gradient of a parameter that no rank used stays as it is. A rank has used a parameter if it did so in some backward since the
// last synchronised one. So in find_unused, gradients of backwards without sync stay borrowed until the end of the next synchronised
// backward, also if that fails.
//
// A local failure never desynchronises. A rank that lacks gradients at EndBackward still launches every bucket, with zeros for what is
// missing and `failed` set in the status trailer, and posts a message that says what is missing. Every rank sees the failure in the sum,
// reads the messages, and returns the same FAILED_PRECONDITION. The next step may be tried. A stream with an error, a refused mark
// (reducer/ready_set.h) and a failed hook are reported in the same way. Only a rank that cannot launch a bucket aborts the communicator. A
// failure after this rank's last bucket was sent is returned by this rank alone.
//
// The communicator. From a synchronised BeginBackward to its EndBackward the reducer holds it (Communicator::Hold): collectives of others
// are refused at their call, and so is another reducer's BeginBackward. A backward without sync leaves it free, and duplicates of it are
// always free. Several reducers may share a communicator. Their backwards follow each other in the same order on all ranks.
//
// CUDA graphs. A step that begins on a stream which is being captured becomes part of the graph (reducer/captures.h). It runs whenever the
// graph is launched, over the same gradients and with what the host knew when it was captured. The host follows no replay; CheckReplays
// reads what replays left.
//
// Running ahead. On a device a step begins without waiting for the step before, unless the host does something for it or decides something
// by it (a hook, an optimizer, uneven inputs). At most two steps are under way: the next one first waits for the older. Their bookkeeping
// is apart. Their buckets are the same memory, used in the order of the streams. What the status trailers of a step decide takes effect
// at the same later step on all ranks.
//
// After a failure StateOf returns the state of each gradient (Bucket::StateOf). Buckets that were sent before the failure hold averages. In
// the others no gradient is changed, except bucket views. If the communicator fails in the middle of an all-reduce, gradients that are
// reduced where they lie hold parts of sums; copied ones are as they were. With preserve_gradients, all that the step may write is copied
// aside as it is marked, and put back if the step fails.
//
// Memory. Where gradients are copied there is one flat buffer per bucket, aligned to 256 bytes, in memory of the communicator's allocator.
// It is allocated at creation and freed with the reducer; another plan is laid out in the same memory. With buckets_in_memory_max, buckets
// take turns: bucket b has the memory of bucket b - n, and its gradients stay where they are until that one is copied out. Gradients and
// their streams stay the embedder's, borrowed from MarkReady to the end of the backward (on its stream, if it has one).

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
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "comm/communicator.h"
#include "reducer/bucket_filler.h"
#include "reducer/buffers/buffer_sync.h"
#include "reducer/buffers/buffers.h"
#include "reducer/captures.h"
#include "reducer/gradient_check.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/bucket_memory.h"
#include "reducer/pipeline/bucket_pipeline.h"
#include "reducer/pipeline/gradient_claims.h"
#include "reducer/pipeline/step_outcome.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/plan/replanner.h"
#include "reducer/ready_set.h"
#include "reducer/reducer_options.h"
#include "reducer/replicas/replica_check.h"
#include "reducer/report/record.h"
#include "reducer/report/reports.h"
#include "reducer/report/trace.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

struct ForwardOptions {
  absl::Span<const TensorView> buffers;  // the geometry of SetBuffers; they may lie elsewhere
};

struct BackwardOptions {
  bool sync = true;  // false: gradients only accumulate in the embedder's memory
  // In find_unused: the parameters that will not be marked. Null: those that are not marked by EndBackward.
  absl::optional<absl::Span<const size_t>> unused = absl::nullopt;
  // A stream of the gradients' device; may be null. If it is being captured, the step is captured. In bucket views, whatever writes the
  // views of `unused` parameters comes before this point of it.
  Stream* stream = nullptr;
  // With ReducerOptions::replicas: where each of those tensors is, unchanged until this call returns (on a device: until the stream has
  // passed it). Null leaves a tensor out, an empty list all of them. All ranks name the same tensors, or none is a fault of theirs.
  absl::Span<const void* const> replicas = {};
};

// In how many synchronised backwards a parameter was used: in that backward, or in one without sync before it.
struct ParameterUse {
  int64_t by_any_rank = 0;
  int64_t by_this_rank = 0;
};

// How a reducer came to its communicator. The numbers are sent.
enum class Origin : uint64_t { kCreated = 0, kChanged = 1 };

class Reducer {
 public:
  // Creates a reducer. Collective: compares tables and options across ranks.
  // REQUIRES  the communicator outlives the reducer
  // ERRORS    INVALID_ARGUMENT     this rank's arguments are invalid
  //           RESOURCE_EXHAUSTED   the buckets do not fit in this rank's memory
  //           FAILED_PRECONDITION  tables or options differ: the same on all ranks; or another rank failed in one of these ways
  static absl::StatusOr<std::unique_ptr<Reducer>> Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options);

  // If a synchronised backward was begun and EndBackward was not called, the step fails on all ranks that are in it, with an error that
  // names this rank; if they do not end theirs within 30 s, the communicator is aborted. Waits for launched buckets, whose collectives end
  // by their deadlines. To cut that short, abort the communicator first.
  ~Reducer();

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Declares the model's buffers, which are broadcast for each step. Collective; called once at most.
  absl::Status SetBuffers(absl::Span<const TensorView> buffers, BufferOptions options);

  // A forward begins: samples the last step for the logging data, and broadcasts the buffers if this is the first forward since the last
  // synchronised backward, whether or not its own backward will be synchronised, as in DDP. Then it is collective, and blocks. Without
  // buffers, and for a forward that no backward follows, it may be left out.
  // RETURNS  views of fresh buffers; empty if there are none
  absl::StatusOr<FreshBuffers> BeginForward(const ForwardOptions& options);
  // The same for buffers that are broadcast after the forward.
  absl::Status EndForward(const ForwardOptions& options);

  // Begins a backward. Adopts a new plan if it is due.
  // REQUIRES  all ranks capture the same steps
  // ERRORS    FAILED_PRECONDITION  the last backward was not ended; `unused` cannot be named by these options; with sync, another reducer's
  //                                backward is under way on the communicator; with sync, the stream is being captured and the step
  //                                cannot be (the message says why, and what to do: nothing was issued, and other steps may follow)
  //           INVALID_ARGUMENT     `unused` holds an index that is not in the table
  //           DATA_LOSS            the replicas differ, and ReducerOptions::on_drift returned that error; nothing was begun, on any rank
  //           the communicator's error if it has failed
  absl::Status BeginBackward(const BackwardOptions& options);

  // The gradient of a parameter is final: now (null stream), or when `stream` reaches this point.
  // ERRORS  INVALID_ARGUMENT     an index out of range; a gradient that does not match the table; memory that another parameter has, of
  //                              this reducer or of another one (reducer/pipeline/gradient_claims.h)
  //         FAILED_PRECONDITION  no backward is under way; the parameter was marked before, is unused, or does not fit the static
  //                              graph; the stream is being captured and the step is not, or the reverse
  // A refused mark counts as none. Unless a later one of the same parameter is accepted, EndBackward returns FAILED_PRECONDITION with the
  // refusal: on every rank, or on this one alone if everything had been sent.
  absl::Status MarkReady(size_t index, const TensorView& gradient, Stream* stream);
  // The same, but the average goes to `target`, of any real float dtype (complex: of the same), and `gradient` is only read. For gradients
  // in another precision than the optimizer's. Backwards without sync ignore `target`.
  absl::Status MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream);

  // The same for a sparse parameter: values[i] is the gradient of row rows[i]. Rows come in any order; repeated ones are summed. `values`
  // has the shape [rows, the other dimensions], row-major. Both are only read, and borrowed like a gradient.
  // ERRORS  also INVALID_ARGUMENT for a row that is out of range
  absl::Status MarkReadySparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values, Stream* stream);

  // With find_unused: no gradient of the parameter comes in this backward, as if `unused` had named it. In bucket views, whatever writes
  // its view comes before this, or before this point of the stream. Does nothing for a delayed parameter.
  // ERRORS  as of MarkReady; FAILED_PRECONDITION also without find_unused, after a refused mark, and in a captured step
  absl::Status MarkUnused(size_t index, Stream* stream) ABSL_LOCKS_EXCLUDED(mu_);

  // Why gradients of the backward under way will be missing: if they are, the error of its end has this, if it is not empty, instead of
  // their names. A parameter without a mark is missing then.
  void ExplainMissing(std::string reason) ABSL_LOCKS_EXCLUDED(mu_);

  // Records a mark that the caller refused with `error`. RETURNS `error` with the parameter.
  absl::Status RefuseMark(size_t index, const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the backward. Null stream: returns when the averages are in the gradients. Otherwise returns when everything is issued, and makes
  // `stream` wait for it. Errors of other ranks in this step are then returned once, by a later call: on the host the next BeginBackward;
  // on a device, where steps run ahead, the BeginBackward after that, or the first call that waits for this step.
  //
  // Of a captured step: makes `stream` wait for all that was issued, so that the capture may end there. An error is this rank's own. If
  // gradients were missing, the graph is whole, and each replay fails on every rank; any other error means that the graph must not be
  // launched. If the capture is over already, the step is given up: FAILED_PRECONDITION.
  absl::Status EndBackward(Stream* stream) { return TryEndBackward(stream, Deadline::Infinite()).status(); }
  // The same, but waits for averages no longer than until the deadline.
  // RETURNS  whether the backward has ended, as it has after an error. If not, it goes on: call this again, and nothing else before.
  absl::StatusOr<bool> TryEndBackward(Stream* stream, Deadline deadline);

  // How the last replay of each captured step went. OK before any replay.
  // REQUIRES  the streams in which graphs were launched are synchronised
  // ERRORS    FAILED_PRECONDITION  a replay failed and wrote no averages: names the captured backward, the ranks, and what was missing
  //                                there; the same on every rank
  //           the communicator's error if it has failed
  absl::Status CheckReplays();

  // Where the average of a parameter is: after a synchronised backward that was not captured, until the next one begins. Waits for the
  // backward's end. RETURNS a view without data if no rank used the parameter. If only others did, the view is of the reducer's memory.
  absl::StatusOr<TensorView> AverageOf(size_t index);

  // Returns the state of the parameter's gradient, or of its target if one was marked, after the last synchronised backward, even if that
  // failed.
  // ERRORS  as of AverageOf; a step on a stream returns its error once, here too
  absl::StatusOr<GradientState> StateOf(size_t index);

  // The same of a sparse parameter. RETURNS null if no rank used it. The bits are the same on every rank.
  absl::StatusOr<const CoalescedGradient*> SparseAverageOf(size_t index);

  // In bucket views: where the gradient lives, an alias of the bucket's memory with the table's strides (row-major where those leave gaps).
  // It is valid until a new plan: then plan_version() grows in BeginBackward, gradients are moved, and views must be asked for again. A
  // gradient elsewhere may be marked too: it is copied there and back.
  // The view of a parameter that this rank did not use has the average after a synchronised backward in which another rank used it. If
  // nobody did, it is as it was: it was copied aside meanwhile, which costs memory.
  // REQUIRES  nothing writes the view of an unused parameter behind BeginBackward's stream, if `unused` names it, or else behind
  //           EndBackward's; nothing uses views while they are moved
  absl::StatusOr<TensorView> GradientView(size_t index) const;

  // Plans buckets anew. Every rank calls it. Let s be the first synchronised backward that succeeds and that every rank began after its
  // call. The plan follows the order of rank 0's gradients in s, and is in use from step s + Replanner::kSteps on.
  absl::Status RequestReplan();
  // The plan in use, for ReducerOptions::plan.
  std::string ExportPlan() const;
  // 1 for the first plan. Grows in BeginBackward only.
  int64_t plan_version() const { return plan_version_; }

  // For a rank that has no more inputs: takes part in the others' steps with zeros, without a deadline, until all ranks have joined. Then
  // `model` is broadcast to all from the rank that joined last (of several, the highest).
  // With SetBuffers, each rank with inputs brings the buffers once for each of its synchronised steps, and this rank once more as it joins,
  // with `buffers`. They are those of the highest rank that has inputs, as in DDP.
  // ERRORS  FAILED_PRECONDITION  uneven_inputs is not set, or throw_on_early_end is
  absl::Status Join(absl::Span<const TensorView> model, absl::Span<const TensorView> buffers = {});

  // Ends what is under way, whether or not it failed, and begins anew over another communicator. Every rank of that calls it, or Create
  // with equal arguments and the plan that the others export. The plan stays if all ranks have the same, else the first one is taken.
  // Memory is fresh, so bucket views move, with their contents.
  // ERRORS  as of Create; then the reducer can only be given another communicator
  absl::Status ChangeCommunicator(Communicator* communicator);

  // Broadcasts the root's tensors, coalesced into messages of up to 250 MiB. Collective; blocks.
  absl::Status Broadcast(absl::Span<const TensorView> tensors, Rank root);

  // The one that it was made with, or was changed to.
  Communicator* communicator() const { return communicator_; }

  // Why gradients are copied into buckets and back. Empty: they are reduced where they lie, or live in the buckets.
  const std::string& copied_because() const { return copied_because_; }

  // Where gradients are.
  Device* device() const { return accelerator_.device; }

  // Borrowed until the next BeginBackward.
  const BucketPlan& plan() const { return plan_; }

  // The record of the last synchronised backward that is known to be over, and of the sampled ones: for reports (reducer/report/reports.h).
  const ReducerRecord& record() const { return record_; }
  ReducerStatistics statistics() const { return Statistics(record_.last); }
  // ERRORS  INVALID_ARGUMENT  a rate below 1
  absl::Status SetLoggingSampleRate(int64_t sample_rate) { return record_.SetSampleRate(sample_rate); }

  // How often each parameter was used, by index in the table, in synchronised backwards that succeeded on all ranks and are known to be
  // over. Replays of a captured backward are not counted. by_any_rank is equal on all ranks. The counts outlive changes of the plan and of
  // the communicator.
  // REQUIRES  no other call at the same time
  // RETURNS   memory of the reducer, borrowed for as long as it lives; it changes in BeginBackward, EndBackward and whatever waits for one
  absl::Span<const ParameterUse> parameter_use() const { return use_; }

 private:
  enum class State { kIdle, kArmed, kAccumulating };

  // The state of a step until its outcome is known. The buckets of both flights are the same memory.
  struct Flight {
    std::vector<std::unique_ptr<Bucket>> buckets;
    std::unique_ptr<StepOutcome> outcome;  // constant on a communicator
    StepRecord record;
    uint64_t step = 0;
    std::vector<size_t> order;  // in which its gradients became ready
    bool can_be_static = false;
    bool captured = false;
    bool under_way = false;  // EndBackward left its result to a later call
    uint64_t round = 0;      // of claims_, from EndStep on
  };

  using Filling = BucketFiller::Filling;

  Reducer(std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan);
  // Collective: makes everything that depends on the communicator.
  absl::Status Open(Communicator* communicator, Origin origin);
  // Opens the trace, too.
  absl::Status BeginRecord();
  // Collective. Succeeds on every rank or on none, but for an error of this rank alone.
  absl::Status Allocate();
  // Lays the plan's buckets out in the memory.
  absl::Status MakeBuckets();
  // Replaces the plan by one that fits.
  absl::Status Adopt(BucketPlan plan);
  // Copies gradients that live in buckets out of them, and back to where they live then.
  absl::StatusOr<KeptGradients> TakeGradients() const;
  absl::Status PutBack(const KeptGradients& kept) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status CheckIdle(absl::string_view call) ABSL_LOCKS_EXCLUDED(mu_);
  // Begins every synchronised step: renews a hook's communicator that failed, and adopts a plan that is due.
  absl::Status PrepareStep(bool joined) ABSL_LOCKS_EXCLUDED(mu_);
  // Until BecomeIdle.
  absl::Status HoldCommunicator(absl::string_view call);
  void BecomeIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A captured step has a place for its status trailer.
  void BeginStep(bool joined, absl::optional<uint32_t> hash, char* replayed_trailer = nullptr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Holds the communicator, and hashes the replica of the step that is about to begin. On an error the communicator is released.
  absl::StatusOr<absl::optional<uint32_t>> Prepare(absl::string_view call, const BackwardOptions& options, bool joined)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status BeginCaptured(const BackwardOptions& options) ABSL_LOCKS_EXCLUDED(mu_);
  // After a failure: puts back what the step must not change, where no peer writes. REQUIRES  nothing of the step is under way
  absl::Status Restore(const Flight& flight);
  absl::Status EndCaptured(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether a synchronised backward was begun that EndBackward has not completed.
  bool IsUnfinished() ABSL_LOCKS_EXCLUDED(mu_);
  // A step of a rank without inputs.
  absl::Status ShadowStep() ABSL_LOCKS_EXCLUDED(mu_);

  char* ViewAt(size_t index) const;  // null where there are none
  // `checked`: the result of the checks that need no lock.
  absl::Status Mark(size_t index, absl::Status checked, const GradientRef& gradient) ABSL_LOCKS_EXCLUDED(mu_);
  // Records that a mark was refused. RETURNS the error with the parameter.
  absl::Status Refuse(size_t index, absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ReadySet::Effect> TakeMark(size_t index, const GradientRef& gradient)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // REQUIRES  a backward is under way
  absl::Status Claim(size_t index, const GradientRef& gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A mark was refused, and no later mark can make up for it: notifies the other ranks, if a bucket is still to be sent.
  void TellRefusal(size_t index, const absl::Status& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fills the slot with the window's gradient. Without one the parameter is unused.
  Filling FillFromWindow(size_t index, Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fills the slot with zeros. First copies a gradient that lives in the bucket aside, in the order of `stream` (null: now).
  Filling FillUnused(size_t index, Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Launches what is full. The last bucket tells the other ranks if another reducer has overwritten a gradient.
  void LaunchFull();
  // Appends the delayed ones, once in a step.
  void FillDelayed(Stream* stream, std::vector<Filling>* fillings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The step has issued everything: its window ends.
  void EndStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the step's last copy. RETURNS how the step went, the same on every rank.
  absl::Status Finish(Flight& flight, bool joined) ABSL_LOCKS_EXCLUDED(mu_);
  // The end of TryEndBackward where averages are waited for.
  absl::StatusOr<bool> AwaitEnd(Deadline deadline) ABSL_LOCKS_EXCLUDED(mu_);
  // Until all that was launched of the step is done.
  absl::Status Await(Flight& flight, Deadline deadline);
  absl::Status FinishIfUnderWay(Flight& flight) ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes every step that is under way, and with `last_too` the one that has just been issued. RETURNS all their errors.
  absl::Status FinishAll(bool last_too) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the end of the last synchronised backward.
  absl::Status AwaitAverages(size_t index, bool sparse, absl::string_view call) ABSL_LOCKS_EXCLUDED(mu_);

  // The flight of the next step. Meanwhile the step before may be under way in the other.
  Flight& next_flight() { return runs_ahead_ && flight_ == &flights_[0] ? flights_[1] : flights_[0]; }
  absl::Span<const std::unique_ptr<Bucket>> buckets() const { return flight_->buckets; }
  // Broadcasts the buffers, if that is due.
  absl::StatusOr<FreshBuffers> SyncBuffers(const ForwardOptions& options, BufferOptions::When when);

  // Constant after construction.
  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;
  const PlanRules rules_;

  // Thread-safe. Outlives what is under way.
  GradientClaims claims_;

  // Constant on a communicator.
  GradientCheck check_;
  Communicator* communicator_ = nullptr;
  Accelerator accelerator_;
  std::string copied_because_;
  bool runs_ahead_ = false;  // a step may begin before it is known how the one before it went
  std::unique_ptr<Replanner> replanner_;
  std::unique_ptr<BucketMemory> memory_;
  std::unique_ptr<ReplicaCheck> replicas_;  // null: replicas are not checked

  // Changed between backwards only.
  BucketPlan plan_;
  int64_t plan_version_ = 1;
  uint64_t planned_in_ = 0;  // the step that showed that all ranks had requested a plan; 0: none
  bool hook_failed_ = false;
  std::vector<ParameterUse> use_;        // by parameter
  KeptGradients kept_;                   // while a change of the communicator has failed
  bool holds_ = false;                   // the communicator
  bool awaits_ = false;                  // all of a backward was issued, and TryEndBackward has not ended it
  std::unique_ptr<BufferSync> buffers_;  // null: no buffers
  ReducerRecord record_;
  StepTime forward_begin_;                    // of the next backward, if there is one
  StepInterval replicas_checked_;             // for the step that is about to begin
  std::unique_ptr<TraceFile> trace_;          // null: nobody asks for one
  Flight flights_[2];                         // the second one only where steps run ahead
  Flight* flight_ = &flights_[0];             // of the last step that was begun
  std::unique_ptr<BucketPipeline> pipeline_;  // behind the buckets: it ends first

  // Filled with mu_ held, completed without.
  BucketFiller filler_;

  // Guarded by mu_.
  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kIdle;
  ReadySet ready_set_ ABSL_GUARDED_BY(mu_);
  Captures captures_ ABSL_GUARDED_BY(mu_);
  // By parameter: gradients of backwards without sync, delayed ones, and those of a static graph's first backward.
  std::vector<Gradient> window_ ABSL_GUARDED_BY(mu_);
  bool delayed_filled_ ABSL_GUARDED_BY(mu_) = false;
  // Unused parameters whose views may be written until end_backward.
  std::vector<size_t> unused_at_end_ ABSL_GUARDED_BY(mu_);
  Stream* begin_stream_ ABSL_GUARDED_BY(mu_) = nullptr;           // of the backward under way
  absl::optional<std::string> why_missing_ ABSL_GUARDED_BY(mu_);  // of this backward, if it was told
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;  // synchronised backwards begun
};

}  // namespace lockstep

#endif  // REDUCER_REDUCER_H_
