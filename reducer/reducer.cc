#include "reducer/reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/status.h"
#include "reducer/broadcast.h"
#include "reducer/plan_text.h"

namespace lockstep {
char* Reducer::ViewAt(size_t index) const {
  if (!options_.gradient_as_bucket_view || buckets_.empty() || index >= plan_.locations.size()) return nullptr;
  const BucketPlan::Location location = plan_.locations[index];
  if (location.bucket == BucketPlan::Location::kIgnored) return nullptr;
  return buckets_[location.bucket]->ViewAt(location.slot);
}

absl::Status Reducer::CheckIdle(absl::string_view call) {
  if (buckets_.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": the change of the communicator failed"));
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  MutexLock lock(&mu_);
  if (state_ == State::kIdle) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the last backward was not ended by end_backward"));
}

absl::Status Reducer::PrepareStep() {
  if (std::exchange(hook_failed_, false)) LOCKSTEP_RETURN_IF_ERROR(pipeline_->RenewHookCommunicator());
  if (!std::exchange(replan_due_, false)) return absl::OkStatus();
  const BucketGroups groups = replanner_->Take();
  return groups.empty() ? absl::OkStatus() : Adopt(LayOut(parameters_, rules_, groups));
}

void Reducer::BeginStep(bool joined, char* replayed_tail) {
  state_ = State::kArmed;
  ending_ = false;
  capturing_ = replayed_tail != nullptr;
  checked_stream_ = nullptr;
  next_bucket_ = 0;
  delayed_filled_ = false;
  ++step_;
  outcome_->Begin(step_);
  pipeline_->Begin({step_, buckets_.size(), replanner_->held(), joined, replayed_tail});
  log_->Publish(recorder_.last());
  recorder_.BackwardBegan(step_);
  for (const std::unique_ptr<Bucket>& bucket : buckets_) bucket->Reset();
}

absl::Status Reducer::BeginBackward(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("begin_backward"));
  // The last step may still be under way in our buckets.
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  if (options.sync && options_.uneven_inputs && buffer_sync_ != nullptr && buffers_due_) {
    return absl::FailedPreconditionError(
        "begin_backward: ranks that have joined await this step's buffers: call begin_forward");
  }
  const bool captured = options.sync && options.stream != nullptr && options.stream->capturing();
  {
    MutexLock lock(&mu_);
    LOCKSTEP_RETURN_IF_ERROR(marks_.Begin(options.unused));
    if (!options.sync) {
      ending_ = false;
      state_ = State::kAccumulating;
      return absl::OkStatus();
    }
  }
  if (captured) return BeginCaptured(options);
  LOCKSTEP_RETURN_IF_ERROR(PrepareStep());
  std::vector<size_t> unused;
  {
    MutexLock lock(&mu_);
    BeginStep(/*joined=*/false);
    unused = marks_.unused();
  }
  for (const size_t index : unused) FillFromWindow(index);
  if (!unused.empty() && options_.overlap) LaunchFull();
  return absl::OkStatus();
}

absl::Status Reducer::CheckPlace(size_t index, const TensorView& tensor) const {
  if (!options_.gradient_as_bucket_view || tensor.elements() == 0 || !memory_->Holds(tensor.data())) {
    return absl::OkStatus();
  }
  if (tensor.data() == ViewAt(index) && tensor.dtype() == parameters_[index].dtype) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("mark_ready: ", Describe(index, parameters_[index]),
                                                    " lies where its bucket view was before plan ", plan_version_,
                                                    ": ask for its view again"));
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(check_.Gradient(index, gradient, ViewAt(index)));
  LOCKSTEP_RETURN_IF_ERROR(CheckPlace(index, gradient));
  return MarkChecked(index, {gradient, gradient, {}, stream});
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream) {
  const void* const view = ViewAt(index);
  LOCKSTEP_RETURN_IF_ERROR(check_.Gradient(index, gradient, view));
  LOCKSTEP_RETURN_IF_ERROR(CheckPlace(index, gradient));
  LOCKSTEP_RETURN_IF_ERROR(check_.Target(index, target, view));
  LOCKSTEP_RETURN_IF_ERROR(CheckPlace(index, target));
  return MarkChecked(index, {gradient, target, {}, stream});
}

absl::Status Reducer::MarkReadySparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values,
                                      Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(check_.Sparse(index, rows, values));
  return MarkChecked(index, {values, {}, rows, stream});
}

absl::Status Reducer::MarkChecked(size_t index, const Gradient& gradient) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError(
          absl::StrCat("mark_ready: ", Describe(index, parameters_[index]), " was marked outside a backward"));
    }
    if (state_ == State::kArmed) LOCKSTEP_RETURN_IF_ERROR(CheckStream(gradient.stream));
    LOCKSTEP_ASSIGN_OR_RETURN(const Marks::Effect effect, marks_.Mark(index));
    if (effect == Marks::Effect::kWaits || state_ == State::kAccumulating) {
      window_[index] = gradient;
      return absl::OkStatus();
    }
    recorder_.Marked(index, plan_.locations[index].bucket);
  }
  Fill(index, &gradient);
  if (!options_.delayed.empty() && index == options_.delayed_trigger) FillDelayed();
  if (options_.overlap) LaunchFull();
  return absl::OkStatus();
}

void Reducer::Fill(size_t index, const Gradient* gradient) {
  const BucketPlan::Location location = plan_.locations[index];
  Bucket& bucket = *buckets_[location.bucket];
  Bucket::Slot& slot = bucket.slots[location.slot];
  slot.used = gradient != nullptr;
  if (slot.used) {
    slot.gradient = gradient->data;
    slot.target = gradient->target;
    slot.rows = gradient->rows;
  }
  Stream* const stream = slot.used ? gradient->stream : nullptr;
  // While it is hot in cache.
  const bool copies =
      stream == nullptr && bucket.before() == nullptr && !bucket.plan().sparse && pipeline_->copies_at_once();
  const absl::Status copied = copies ? pipeline_->CopyIn(bucket, location.slot) : absl::OkStatus();
  outcome_->Fail(copied, bucket.index());
  MutexLock lock(&mu_);
  if (!copies) bucket.staged.push_back(location.slot);
  if (stream != nullptr && stream->is_callers()) {
    // Whoever launches the bucket may be another thread, whose own stream is another.
    outcome_->Fail(pipeline_->MarkPoint(bucket, *stream), bucket.index());
  } else if (stream != nullptr &&
             std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end()) {
    bucket.streams.push_back(stream);
  }
  bucket.full = --bucket.slots_left == 0;
  if (bucket.full) recorder_.Ready(bucket.index());
}

void Reducer::FillFromWindow(size_t index) {
  Gradient gradient;
  bool used = false;
  {
    MutexLock lock(&mu_);
    used = marks_.used_in_window(index);
    if (used) gradient = window_[index];
  }
  Fill(index, used ? &gradient : nullptr);
}

void Reducer::FillDelayed() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(delayed_filled_, true)) return;
  }
  for (const size_t index : options_.delayed) {
    FillFromWindow(index);
    MutexLock lock(&mu_);
    marks_.TakeDelayed(index);
  }
}

void Reducer::LaunchFull() {
  while (true) {
    Bucket* bucket = nullptr;
    bool captured = false;
    {
      MutexLock lock(&mu_);
      captured = capturing_;
      if (launching_ || next_bucket_ == buckets_.size() || !buckets_[next_bucket_]->full) return;
      if (holds_last_bucket_ && !ending_ && next_bucket_ + 1 == buckets_.size()) return;
      recorder_.Launched(next_bucket_);
      bucket = buckets_[next_bucket_++].get();
      launching_ = true;
    }
    const absl::Status launched = pipeline_->Launch(*bucket);
    outcome_->FailCommunication(launched);
    // The others wait for a collective that this rank will never begin; but nobody waits for what is only captured.
    if (!launched.ok() && !captured) {
      communicator_->Abort(absl::StrCat("a bucket cannot be launched: ", launched.message()));
    }
    MutexLock lock(&mu_);
    launching_ = false;
    if (!launched.ok() && captured) next_bucket_ = buckets_.size();
  }
}

absl::Status Reducer::EndBackward(Stream* stream) {
  Marks::Rest rest;
  bool captured = false;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError("end_backward: no backward was begun");
    }
    captured = state_ == State::kArmed && capturing_;
    if (captured) LOCKSTEP_RETURN_IF_ERROR(CheckEndOfCapture(stream));
    rest = marks_.End();
    if (state_ == State::kAccumulating) {
      state_ = State::kIdle;
      // What did not come now may have come before; but each backward of a static graph is like the others.
      if (!options_.static_graph || rest.complaint.empty()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat("end_backward: ", rest.complaint));
    }
    ending_ = true;
    recorder_.EndCalled();
    int64_t unused_bytes = 0;
    for (const size_t index : marks_.unused()) unused_bytes += static_cast<int64_t>(parameters_[index].bytes());
    recorder_.Unused(unused_bytes);
  }
  for (const size_t index : rest.ready) FillFromWindow(index);
  for (const size_t index : rest.unused) FillFromWindow(index);
  for (const size_t index : rest.missing) Fill(index, nullptr);
  FillDelayed();
  if (!rest.complaint.empty()) {
    // The first bucket with a hole was not launched, and nor was one behind it; the last one never was, where holes are no matter.
    size_t first = buckets_.size() - 1;
    for (const size_t index : rest.missing) first = std::min(first, plan_.locations[index].bucket);
    outcome_->Fail(absl::FailedPreconditionError(rest.complaint), first);
  }
  LaunchFull();
  if (captured) return EndCaptured(*stream);

  const bool in_flight = stream != nullptr && rest.complaint.empty();
  const absl::Status result = in_flight ? pipeline_->MakeWait(*stream, *buckets_.back()) : Finish(/*joined=*/false);
  MutexLock lock(&mu_);
  if (in_flight) recorder_.EndReturned();
  in_flight_ = in_flight;
  state_ = State::kIdle;
  return result;
}

absl::Status Reducer::FinishInFlight() {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(in_flight_, false)) return absl::OkStatus();
  }
  return Finish(/*joined=*/false);
}

absl::Status Reducer::Finish(bool joined) {
  // Collectives end by their own deadlines, so this does.
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->Synchronize(Deadline::Infinite()));
  const Bucket& last = *buckets_.back();
  absl::Status status = outcome_->Conclude(last.failed, Remedy());
  hook_failed_ = last.failed > 0;
  buffers_due_ = true;
  std::vector<size_t> order;
  bool static_so_far = false;
  {
    MutexLock lock(&mu_);
    marks_.EndWindow();
    order = marks_.order();
    static_so_far = marks_.can_be_static();
    recorder_.Finished();
  }
  if (std::exchange(recorded_version_, plan_version_) != plan_version_) recorded_plan_ = plan_;
  log_->Finished(recorder_.last(), recorded_plan_);
  if (options_.find_unused) log_->data().can_set_static_graph = static_so_far;
  if (status.ok() && last.joined > 0 && last.joined < communicator_->size() && options_.throw_on_early_end) {
    status = absl::FailedPreconditionError(
        absl::StrCat("end_backward: ", last.joined, " rank(s) have exhausted their inputs before others"));
  }
  log_->Failed(status);
  // As the sum says, so on all ranks or on none: also where this rank alone has failed, too late for the others to hear.
  replan_due_ = last.reduced && last.unplanned == 0;
  if (last.reduced) LOCKSTEP_RETURN_IF_ERROR(RegroupBuffers(joined));
  if (!status.ok()) return status;
  if (!order.empty()) replanner_->Record(order, [this](const BucketPlan& plan) { return memory_->Fits(plan); });
  return absl::OkStatus();
}

std::string Reducer::Remedy() const {
  std::string text = options_.gradient_as_bucket_view ? "Gradients of the buckets concerned are lost"
                                                      : "No gradient of the buckets concerned was changed";
  if (!pipeline_->optimized().empty()) {
    absl::StrAppend(&text, "; the optimizer has already stepped bucket(s) ",
                    absl::StrJoin(pipeline_->optimized(), ", "));
  }
  return text + "; the next step may be tried.";
}

absl::Status Reducer::AwaitAverages(size_t index, bool sparse, absl::string_view call) {
  LOCKSTEP_RETURN_IF_ERROR(check_.Index(index, sparse, call));
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  MutexLock lock(&mu_);
  if (capturing_) {
    return absl::FailedPreconditionError(absl::StrCat(
        call, ": the last backward was captured: once it is replayed, averages are where gradients were marked"));
  }
  if (state_ == State::kIdle && step_ > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": there is none before a synchronised backward has ended"));
}

absl::StatusOr<TensorView> Reducer::AverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/false, "average"));
  const BucketPlan::Location location = plan_.locations[index];
  const Bucket::Slot& slot = buckets_[location.bucket]->slots[location.slot];
  return slot.used_anywhere ? slot.target : TensorView();
}

absl::StatusOr<const CoalescedGradient*> Reducer::SparseAverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/true, "sparse_average"));
  const Bucket& bucket = *buckets_[plan_.locations[index].bucket];
  return bucket.slots[0].used_anywhere ? &bucket.sparse_average : nullptr;
}

absl::StatusOr<TensorView> Reducer::GradientView(size_t index) const {
  LOCKSTEP_RETURN_IF_ERROR(check_.Index(index, /*sparse=*/false, "gradient_view"));
  if (!options_.gradient_as_bucket_view) {
    return absl::FailedPreconditionError(
        "gradient_view: gradients do not live in buckets: set gradient_as_bucket_view");
  }
  if (buckets_.empty()) return absl::FailedPreconditionError("gradient_view: the change of the communicator failed");
  return DenseView(parameters_[index], ViewAt(index));
}

absl::Status Reducer::RequestReplan() {
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  replanner_->Request();
  return absl::OkStatus();
}

std::string Reducer::ExportPlan() const { return PlanToText(parameters_, GroupsOf(plan_)); }

absl::Status Reducer::Broadcast(absl::Span<const TensorView> tensors, Rank root) {
  return BroadcastCoalesced(*communicator_, tensors, root);
}

ReducerStatistics Reducer::statistics() const {
  MutexLock lock(&mu_);
  return Statistics(recorder_.last());
}

absl::StatusOr<BucketStatistics> Reducer::bucket_statistics(size_t bucket) const {
  MutexLock lock(&mu_);
  const size_t count = recorder_.last().buckets.size();
  if (bucket < count) return Statistics(recorder_.last(), bucket);
  return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " is out of range: the last step had ", count));
}

std::string Reducer::Summary() const {
  MutexLock lock(&mu_);
  return log_->Summarize(recorder_.last(), recorded_plan_);
}

}  // namespace lockstep
