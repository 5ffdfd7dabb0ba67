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
// the same collectives in the same order whatever the order of its gradients (reducer/pipeline/bucket_pipeline.h).
//
// Unused parameters. Behind each bucket's data lie bits that say for which parameters this rank has a gradient; the all-reduce counts
// them. The gradient of a parameter that no rank has used stays as it is. Who has used it in some backward since the last
// synchronised one has: in find_unused, the gradients of backwards without sync stay borrowed until the next one with, which ends that
// window also when it fails.
//
// A local failure never desynchronises. When gradients are missing at EndBackward, the rank still launches every bucket left, with
// zeros for what is missing and with a mark behind the data, and leaves a note saying what was missing. Every rank sees the
// mark in the sum, reads the notes, and returns the same FAILED_PRECONDITION; the next step may be tried. A stream with an error,
// a refused mark (reducer/marks.h) and a failed hook are told to the others in the same way. Only a rank that cannot launch a bucket at
// all aborts the communicator. What this rank learns when its last bucket has left, it alone returns.
//
// Threads. MarkReady may be called by several threads at once; they have returned when EndBackward is called. Everything else is
// called by one thread at a time. No lock is held while something is copied or launched.
//
// The communicator. Between a synchronised BeginBackward and its EndBackward it belongs to the reducer: it holds it (Communicator::Hold),
// so collectives of others are refused at their call, and so is another reducer's BeginBackward. A backward without sync leaves it
// free, and duplicates of it are free at any time. Several reducers may have the same communicator, whose backwards follow each other
// in the same order on all ranks.
//
// CUDA graphs. A step that begins on a stream which is being captured becomes part of the graph (reducer/captures.h): nothing of
// it is done before the graph is launched, and then all of it, as often as that is, over the same gradients and with what the host knew
// when it was captured. The host follows no replay; CheckReplays tells what they told.
//
// Running ahead. On a device a step begins without waiting for the last one, unless the host has something to do for it or to decide by it
// (a hook, an optimizer, uneven inputs). Two steps at most are under way: the next one first waits for the older. Their bookkeeping is
// apart, their buckets are the same memory, in the order of the streams. What a step's tail decides is decided at the same later step on
// all ranks.
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
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "reducer/bucket_filler.h"
#include "reducer/buffers/buffer_sync.h"
#include "reducer/buffers/buffers.h"
#include "reducer/captures.h"
#include "reducer/gradient_check.h"
#include "reducer/kept_gradients.h"
#include "reducer/marks.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/bucket_memory.h"
#include "reducer/pipeline/bucket_pipeline.h"
#include "reducer/pipeline/step_outcome.h"
#include "reducer/pipeline/written_ranges.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/plan/replanner.h"
#include "reducer/reducer_options.h"
#include "reducer/report/record.h"
#include "reducer/report/reports.h"
#include "reducer/report/trace.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

struct ForwardOptions {
  absl::Span<const TensorView> buffers;  // as SetBuffers got them, wherever they lie now
};

struct BackwardOptions {
  bool sync = true;  // false: gradients only accumulate in the embedder's memory
  // In find_unused: the parameters that will not be marked. Without it those that were not marked by the end.
  absl::optional<absl::Span<const size_t>> unused = absl::nullopt;
  // Of the gradients' device: where the backward begins. If it is being captured, the step is captured. May be null else. In bucket views
  // what may still write the views of `unused` parameters comes before this point.
  Stream* stream = nullptr;
};

// Of one parameter: in how many synchronised backwards it was used. One that was used in some backward since the last synchronised one
// counts as used in it.
struct ParameterUse {
  int64_t by_any_rank = 0;
  int64_t by_this_rank = 0;
};

// How a reducer came to its communicator. The numbers are sent.
enum class Origin : uint64_t { kCreated = 0, kChanged = 1 };

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

  // Every rank calls it, once, if a model has buffers that are to be brought from one rank to the others for each step.
  absl::Status SetBuffers(absl::Span<const TensorView> buffers, BufferOptions options);

  // May be left out where there are no buffers. A forward begins: what is known of the last step is published in the logging data, and
  // buffers come (blocking; by a channel of their own) if it is the first forward since the last synchronised backward, whether or not
  // its own backward will be one: as in DDP. Every rank calls it then. A forward that no backward follows needs none of this. Views
  // are empty unless there are fresh buffers.
  absl::StatusOr<FreshBuffers> BeginForward(const ForwardOptions& options);
  // Likewise, for buffers that come after it.
  absl::Status EndForward(const ForwardOptions& options);

  // FAILED_PRECONDITION unless idle, for unused parameters that cannot be named here, and, with sync, while another reducer's backward
  // is under way on the communicator; the communicator's error if it is over. Goes over to a new plan when all ranks hold it.
  //
  // On a stream that is being captured, FAILED_PRECONDITION also for a step that cannot be: the message says why, and what to do. Nothing
  // was issued then, and other steps may follow. All ranks capture the same steps. Without sync nothing is issued, so nothing is refused.
  absl::Status BeginBackward(const BackwardOptions& options);

  // The gradient of a parameter is final: now (null stream), or when `stream` reaches this point. INVALID_ARGUMENT for an index out
  // of range, a gradient that does not match the table, and memory into which another parameter's average goes in this backward;
  // FAILED_PRECONDITION outside a backward, or when it was marked before, is unused, or does not fit a static graph; and for a
  // stream that is not being captured in a step that is, or the other way round.
  //
  // A refused mark counts as none. Unless a later one of the same parameter is accepted, EndBackward returns FAILED_PRECONDITION
  // with the refusal: on every rank, or, if it came when everything had been sent, on this one.
  absl::Status MarkReady(size_t index, const TensorView& gradient, Stream* stream);
  // The average goes to `target`, of any real float dtype (complex: of the same), instead; `gradient` is only read. For gradients in
  // another precision than what the optimizer wants. In backwards without sync `target` counts for nothing.
  absl::Status MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream);

  // The gradient of a sparse parameter: of row rows[i] (any order, repeated ones are summed) values[i], [rows, the other dimensions],
  // row-major. Both are only read, and borrowed like a gradient. INVALID_ARGUMENT also for a row that there is not.
  absl::Status MarkReadySparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values, Stream* stream);

  // For marks that are refused before they come here, with that error, which is returned.
  absl::Status RefuseMark(size_t index, absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);

  // Null stream: returns when the averages are in the gradients. Otherwise returns when everything is issued, and makes `stream`
  // wait for it. What other ranks have to say of that step is told, once, by a later call: the next BeginBackward; on a device, where
  // steps run ahead, that of the step behind the next one, or whatever waits for the end before.
  //
  // Of a captured step: joins all that was issued to `stream`, where the capture may then end. An error is this rank's own. When
  // gradients were missing, the step is whole all the same, and each replay fails on every rank; another error says that the graph must
  // not be launched. Where the capture is over already, so is the step, with FAILED_PRECONDITION.
  absl::Status EndBackward(Stream* stream);

  // What the replays of captured steps have told by now: of each graph the last one that is done. Synchronise with the streams that they
  // were launched in first. FAILED_PRECONDITION, the same on every rank, names the backward that was captured, the ranks, and what was
  // missing there: averages were not written. The communicator's error if it is over. Before any replay there is nothing to tell.
  absl::Status CheckReplays();

  // After a synchronised backward that was not captured, until the next one begins: where the average of a parameter is. No data: no
  // rank used it. Where another rank did and this one did not, it lies in memory of the reducer's. Waits for the backward's end.
  absl::StatusOr<TensorView> AverageOf(size_t index);

  // Likewise of a sparse parameter: null where no rank used it. The same bits on every rank.
  absl::StatusOr<const CoalescedGradient*> SparseAverageOf(size_t index);

  // In bucket views: where the gradient lives. It is an alias of the bucket's memory with the table's strides (row-major where those
  // leave gaps), kept until a new plan: then plan_version() grows in BeginBackward, gradients are moved, and views must be asked for
  // again. A gradient elsewhere may be marked too: it is copied there and back. The view of a parameter that this rank did not use has the
  // average after a synchronised backward in which another rank did, and is as it was after one in which nobody did: it was copied aside
  // meanwhile, which costs memory for what is unused. Such a view is taken when a backward begins with `unused`, behind its stream, or when
  // it ends, behind EndBackward's: nothing else may be under way that writes it. As views move, nothing may be that uses them.
  absl::StatusOr<TensorView> GradientView(size_t index) const;

  // Every rank calls it: from the next synchronised backward's order buckets are planned anew, and used once all ranks have the plan.
  absl::Status RequestReplan();
  // For ReducerOptions::plan. Of the plan in use.
  std::string ExportPlan() const;
  // 1 for the first plan. Grows in BeginBackward only.
  int64_t plan_version() const { return plan_version_; }

  // For a rank that has no more inputs, where others have: takes part in their steps with zeros, for as long as it takes (its operations
  // have no deadline), until all ranks have joined. Then `model` is broadcast from the rank that joined last, the highest if several
  // did, to all of them. FAILED_PRECONDITION without ReducerOptions::uneven_inputs, and where an early end is to be thrown.
  //
  // Buffers: with SetBuffers each rank with inputs brings them once for each of its synchronised steps, and this rank once more as it
  // joins, with `buffers`. They are those of the highest rank that has inputs then, as in DDP.
  absl::Status Join(absl::Span<const TensorView> model, absl::Span<const TensorView> buffers = {});

  // Every rank of the new communicator calls it, or Create with equal arguments and the plan that the others export. Ends what was under
  // way, whether or not it failed, and begins anew over the other communicator: with the same plan if all ranks have the same, else
  // with the first one; in fresh memory, so bucket views move, with their contents. Errors as of Create; the reducer must not be used
  // then but for another ChangeCommunicator.
  absl::Status ChangeCommunicator(Communicator* communicator);

  // Copies the root's tensors to every rank, coalesced into messages of up to 250 MiB. Blocks.
  absl::Status Broadcast(absl::Span<const TensorView> tensors, Rank root);

  // The one that it was made with, or was changed to.
  Communicator* communicator() const { return communicator_; }

  // Where gradients are.
  Device* device() const { return accelerator_.device; }

  // Borrowed until the next BeginBackward.
  const BucketPlan& plan() const { return plan_; }

  // Of the last synchronised backward that is known to be over, and of the sampled ones. For reports (reducer/report/reports.h).
  const ReducerRecord& record() const { return record_; }
  ReducerStatistics statistics() const { return Statistics(record_.last); }
  // ERRORS  INVALID_ARGUMENT  a rate below 1
  absl::Status SetLoggingSampleRate(int64_t sample_rate) { return record_.SetSampleRate(sample_rate); }

  // How often each parameter was used, by index in the table; ignored ones never. Of the synchronised backwards that succeeded on all
  // ranks and are known to be over, as in statistics(); replays of a captured one are not counted. What any rank used is equal on all
  // ranks. Goes on over changes of the plan and of the communicator.
  // REQUIRES  no other call at the same time.
  // RETURNS   what is borrowed for as long as the reducer lives, and grows in BeginBackward, EndBackward and whatever waits for one.
  absl::Span<const ParameterUse> parameter_use() const { return use_; }

 private:
  enum class State { kIdle, kArmed, kAccumulating };

  // What is kept of a step until it is known how it went. Buckets of different ones have the same memory.
  struct Flight {
    std::vector<std::unique_ptr<Bucket>> buckets;
    std::unique_ptr<StepOutcome> outcome;  // constant on a communicator
    StepRecord record;
    uint64_t step = 0;
    std::vector<size_t> order;  // in which its gradients became ready
    bool can_be_static = false;
    bool captured = false;
    bool under_way = false;  // EndBackward left its result to a later call
  };

  using Filling = BucketFiller::Filling;

  Reducer(std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan);
  // Collective: makes everything that depends on the communicator.
  absl::Status Open(Communicator* communicator, Origin origin);
  // Opens the trace, too.
  absl::Status BeginRecord();
  // Ends well on every rank or on none, but for what this rank alone lacks.
  absl::Status Allocate();
  // Lays the plan's buckets out in the memory.
  absl::Status MakeBuckets();
  // Goes over to another plan that fits.
  absl::Status Adopt(BucketPlan plan);
  // Gradients that live in buckets, taken out of them and put back where they live then.
  absl::StatusOr<KeptGradients> TakeGradients() const;
  absl::Status PutBack(const KeptGradients& kept) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status CheckIdle(absl::string_view call) ABSL_LOCKS_EXCLUDED(mu_);
  // What a synchronised step begins with, before anything is marked.
  absl::Status PrepareStep() ABSL_LOCKS_EXCLUDED(mu_);
  // The communicator, until BecomeIdle.
  absl::Status HoldCommunicator(absl::string_view call);
  void BecomeIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A captured step has a place for its tail.
  void BeginStep(bool joined, char* replayed_tail = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status BeginCaptured(const BackwardOptions& options) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EndCaptured(Stream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  // A step of a rank without inputs.
  absl::Status ShadowStep() ABSL_LOCKS_EXCLUDED(mu_);

  char* ViewAt(size_t index) const;  // null where there are none
  // `checked`: what is wrong with the mark by itself.
  absl::Status Mark(size_t index, absl::Status checked, const GradientRef& gradient) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Marks::Effect> TakeMark(size_t index, const GradientRef& gradient) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Fills the slot with what the window has. If that is nothing the parameter is unused, and nobody writes what lives in the bucket
  // behind `stream` (null: now).
  Filling FillFromWindow(size_t index, Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Appends the delayed ones, once in a step.
  void FillDelayed(Stream* stream, std::vector<Filling>* fillings) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The step has issued everything: notes what is known of it on this rank.
  void EndStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for the step's last copy and says how the step went, the same on every rank.
  absl::Status Finish(Flight& flight, bool joined) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FinishIfUnderWay(Flight& flight) ABSL_LOCKS_EXCLUDED(mu_);
  // Every step that is under way, with all that they have to say; and `last_too` the one that has just been issued.
  absl::Status FinishAll(bool last_too) ABSL_LOCKS_EXCLUDED(mu_);
  // The end of the last synchronised backward, waited for.
  absl::Status AwaitAverages(size_t index, bool sparse, absl::string_view call) ABSL_LOCKS_EXCLUDED(mu_);

  // The one that the next step is in: while it goes on, the step before may be under way in the other.
  Flight& next_flight() { return runs_ahead_ && flight_ == &flights_[0] ? flights_[1] : flights_[0]; }
  absl::Span<const std::unique_ptr<Bucket>> buckets() const { return flight_->buckets; }
  // Brings the buffers, if that is due.
  absl::StatusOr<FreshBuffers> SyncBuffers(const ForwardOptions& options, BufferOptions::When when);

  // Constant after construction.
  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;
  const PlanRules rules_;

  // Constant on a communicator.
  GradientCheck check_;
  Communicator* communicator_ = nullptr;
  Accelerator accelerator_;
  bool runs_ahead_ = false;  // a step may begin before it is known how the one before it went
  std::unique_ptr<Replanner> replanner_;
  std::unique_ptr<BucketMemory> memory_;

  // Changed between backwards only.
  BucketPlan plan_;
  int64_t plan_version_ = 1;
  uint64_t planned_in_ = 0;  // the step in which all ranks turned out to hold the next plan; 0: none
  bool hook_failed_ = false;
  std::vector<ParameterUse> use_;        // by parameter
  KeptGradients kept_;                   // while a change of the communicator has failed
  bool holds_ = false;                   // the communicator
  std::unique_ptr<BufferSync> buffers_;  // null: no buffers
  ReducerRecord record_;
  StepTime forward_begin_;                    // of the backward to come, if one does
  std::unique_ptr<TraceFile> trace_;          // null: nobody asks for one
  Flight flights_[2];                         // the second one only where steps run ahead
  Flight* flight_ = &flights_[0];             // of the last step that was begun
  std::unique_ptr<BucketPipeline> pipeline_;  // behind the buckets: it ends first

  // Filled with mu_ held, completed without.
  BucketFiller filler_;

  // Guarded by mu_.
  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kIdle;
  Marks marks_ ABSL_GUARDED_BY(mu_);
  WrittenRanges written_ ABSL_GUARDED_BY(mu_);
  Captures captures_ ABSL_GUARDED_BY(mu_);
  // By parameter: gradients of backwards without sync, delayed ones, and those of a static graph's first backward.
  std::vector<Gradient> window_ ABSL_GUARDED_BY(mu_);
  bool delayed_filled_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;  // synchronised backwards begun
};

}  // namespace lockstep

#endif  // REDUCER_REDUCER_H_
