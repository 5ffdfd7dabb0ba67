#include "reducer/reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/status.h"
#include "reducer/buffers/broadcast.h"
#include "reducer/plan/plan_text.h"

namespace lockstep {
char* Reducer::ViewAt(size_t index) const {
  if (!options_.gradient_as_bucket_view || buckets().empty() || index >= plan_.locations.size()) return nullptr;
  const BucketPlan::Location location = plan_.locations[index];
  if (location.bucket == BucketPlan::Location::kIgnored) return nullptr;
  return buckets()[location.bucket]->ViewAt(location.slot);
}

absl::Status Reducer::CheckIdle(absl::string_view call) {
  if (buckets().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": the change of the communicator failed"));
  }
  LOCKSTEP_RETURN_IF_ERROR(Annotate(communicator_->status(), call));
  MutexLock lock(&mu_);
  if (state_ == State::kIdle) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the last backward was not ended by end_backward"));
}

absl::Status Reducer::PrepareStep() {
  if (std::exchange(hook_failed_, false)) LOCKSTEP_RETURN_IF_ERROR(pipeline_->RenewHookCommunicator());
  uint64_t next = 0;
  {
    MutexLock lock(&mu_);
    next = step_ + 1;
  }
  // The same step on all ranks, whenever each comes to know: by then all do.
  if (planned_in_ == 0 || next < planned_in_ + (runs_ahead_ ? 2 : 1)) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  planned_in_ = 0;
  const BucketGroups groups = replanner_->Take();
  return groups.empty() ? absl::OkStatus() : Adopt(LayOut(parameters_, rules_, groups));
}

absl::Status Reducer::HoldCommunicator(absl::string_view call) {
  if (communicator_->Hold("the backward of a reducer")) {
    holds_ = true;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      call, ": the backward of another reducer is under way on this communicator: end it first, or give each ",
      "reducer a duplicate of the communicator"));
}

void Reducer::BecomeIdle() {
  state_ = State::kIdle;
  if (std::exchange(holds_, false)) communicator_->Release();
}

void Reducer::EndWindow() {
  marks_.EndWindow();
  written_.Forget();
}

void Reducer::BeginStep(bool joined, char* replayed_tail) {
  state_ = State::kArmed;
  ending_ = false;
  capturing_ = replayed_tail != nullptr;
  checked_stream_ = nullptr;
  next_bucket_ = 0;
  delayed_filled_ = false;
  ++step_;
  Event* const after = flight_->under_way ? pipeline_->ReleasedBy(*buckets().back()) : nullptr;
  flight_ = &next_flight();
  flight_->step = step_;
  flight_->outcome->Begin(step_);
  pipeline_->Begin({flight_->outcome.get(), &flight_->recorder, step_, buckets().size(), replanner_->held(), joined,
                    replayed_tail, after});
  log_->Publish(recorded_->last());
  flight_->recorder.BackwardBegan(step_);
  for (const std::unique_ptr<Bucket>& bucket : buckets()) bucket->Reset();
}

absl::Status Reducer::BeginBackward(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("begin_backward"));
  const bool captured = options.sync && options.stream != nullptr && options.stream->capturing();
  // An earlier step may still be under way in our buckets; and a graph cannot wait for one.
  LOCKSTEP_RETURN_IF_ERROR(captured ? FinishInFlight() : FinishIfUnderWay(next_flight()));
  if (options.sync && options_.uneven_inputs && buffer_sync_ != nullptr && buffers_due_) {
    return absl::FailedPreconditionError(
        "begin_backward: ranks that have joined await this step's buffers: call begin_forward");
  }
  {
    MutexLock lock(&mu_);
    LOCKSTEP_RETURN_IF_ERROR(marks_.Begin(options.unused));
    // Then gradients stay borrowed for the whole window.
    if (!options_.find_unused) written_.Forget();
    if (!options.sync) {
      ending_ = false;
      state_ = State::kAccumulating;
      return absl::OkStatus();
    }
  }
  if (captured) return BeginCaptured(options);
  LOCKSTEP_RETURN_IF_ERROR(PrepareStep());
  LOCKSTEP_RETURN_IF_ERROR(HoldCommunicator("begin_backward"));
  std::vector<size_t> unused;
  {
    MutexLock lock(&mu_);
    BeginStep(/*joined=*/false);
    unused = marks_.unused();
  }
  for (const size_t index : unused) FillFromWindow(index, options.stream);
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

absl::Status Reducer::CheckMark(size_t index, const TensorView& gradient, const TensorView* target) const {
  const void* const view = ViewAt(index);
  LOCKSTEP_RETURN_IF_ERROR(check_.Gradient(index, gradient, view));
  LOCKSTEP_RETURN_IF_ERROR(CheckPlace(index, gradient));
  if (target == nullptr) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(check_.Target(index, *target, view));
  return CheckPlace(index, *target);
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, Stream* stream) {
  absl::Status status = CheckMark(index, gradient, nullptr);
  return WithParameter(
      status.ok() ? MarkChecked(index, {gradient, gradient, {}, stream}) : RefuseMark(index, std::move(status)), index);
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream) {
  absl::Status status = CheckMark(index, gradient, &target);
  return WithParameter(
      status.ok() ? MarkChecked(index, {gradient, target, {}, stream}) : RefuseMark(index, std::move(status)), index);
}

absl::Status Reducer::MarkReadySparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values,
                                      Stream* stream) {
  absl::Status status = check_.Sparse(index, rows, values);
  return WithParameter(
      status.ok() ? MarkChecked(index, {values, {}, rows, stream}) : RefuseMark(index, std::move(status)), index);
}

absl::Status Reducer::RefuseMark(size_t index, absl::Status error) {
  MutexLock lock(&mu_);
  const bool expected = index < parameters_.size() && !parameters_[index].ignored;
  if (expected && state_ != State::kIdle && !ending_) marks_.Refuse(index, error);
  return error;
}

absl::StatusOr<Marks::Effect> Reducer::TakeMark(size_t index, const GradientRef& gradient) {
  if (state_ == State::kArmed) LOCKSTEP_RETURN_IF_ERROR(CheckStream(gradient.stream));
  // What lives in its bucket is apart from everything else, and moves with a new plan.
  const bool in_view = gradient.target.data() != nullptr && gradient.target.data() == ViewAt(index);
  absl::optional<size_t> other;
  if (in_view) {
    written_.Remove(index);
  } else {
    other = written_.Add(index, gradient.target);
  }
  if (other.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mark_ready: ", Describe(index, parameters_[index]), " has memory of ", Describe(*other, parameters_[*other]),
        ", whose average goes there in this backward: a weight that is ",
        "shared is one parameter, and others have memory of their own until end_backward"));
  }
  absl::StatusOr<Marks::Effect> effect = marks_.Mark(index);
  // No later mark can make up for it. What has not been sent yet tells the other ranks.
  if (!effect.ok() && state_ == State::kArmed) {
    flight_->outcome->Fail(
        absl::FailedPreconditionError(absl::StrCat("a mark was refused (", effect.status().message(), ")")),
        buckets().size() - 1, /*provisional=*/true);
  }
  return effect;
}

absl::Status Reducer::MarkChecked(size_t index, const GradientRef& gradient) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError(
          absl::StrCat("mark_ready: ", Describe(index, parameters_[index]), " was marked outside a backward"));
    }
    const absl::StatusOr<Marks::Effect> effect = TakeMark(index, gradient);
    if (!effect.ok()) {
      marks_.Refuse(index, effect.status());
      return effect.status();
    }
    if (*effect == Marks::Effect::kWaits || state_ == State::kAccumulating) {
      window_[index] = {gradient.data, gradient.target, gradient.rows, gradient.stream};
      return absl::OkStatus();
    }
    flight_->recorder.Marked(index, plan_.locations[index].bucket);
  }
  Fill(index, gradient);
  if (!options_.delayed.empty() && index == options_.delayed_trigger) FillDelayed(gradient.stream);
  if (options_.overlap) LaunchFull();
  return absl::OkStatus();
}

void Reducer::Fill(size_t index, const GradientRef& gradient) {
  const BucketPlan::Location location = plan_.locations[index];
  Bucket::Slot& slot = buckets()[location.bucket]->slots[location.slot];
  slot.used = true;
  slot.gradient = gradient.data;
  slot.target = gradient.target;
  slot.rows = gradient.rows;
  Filled(index, gradient.stream);
}

void Reducer::FillWithNone(size_t index) { Filled(index, nullptr); }

void Reducer::Filled(size_t index, Stream* stream) {
  const BucketPlan::Location location = plan_.locations[index];
  Bucket& bucket = *buckets()[location.bucket];
  // While it is hot in cache.
  const bool copies =
      stream == nullptr && bucket.before() == nullptr && !bucket.plan().sparse && pipeline_->copies_at_once();
  const absl::Status copied = copies ? pipeline_->CopyIn(bucket, location.slot) : absl::OkStatus();
  flight_->outcome->Fail(copied, bucket.index());
  MutexLock lock(&mu_);
  if (!copies) bucket.staged.push_back(location.slot);
  if (stream != nullptr && stream->is_callers()) {
    // Whoever launches the bucket may be another thread, whose own stream is another.
    flight_->outcome->Fail(pipeline_->MarkPoint(bucket, *stream), bucket.index());
  } else if (stream != nullptr &&
             std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end()) {
    bucket.streams.push_back(stream);
  }
  bucket.full = --bucket.slots_left == 0;
  if (bucket.full) flight_->recorder.Ready(bucket.index());
}

void Reducer::FillFromWindow(size_t index, Stream* stream) {
  Gradient gradient;
  bool used = false;
  {
    MutexLock lock(&mu_);
    used = marks_.used_in_window(index);
    if (used) gradient = window_[index];
  }
  if (used) return Fill(index, {gradient.data, gradient.target, gradient.rows, gradient.stream});
  const BucketPlan::Location location = plan_.locations[index];
  Bucket& bucket = *buckets()[location.bucket];
  bucket.slots[location.slot].keeps = bucket.in_place() && bucket.plan().slots[location.slot].elements > 0;
  Filled(index, bucket.slots[location.slot].keeps ? stream : nullptr);
}

void Reducer::FillDelayed(Stream* stream) {
  {
    MutexLock lock(&mu_);
    if (std::exchange(delayed_filled_, true)) return;
  }
  for (const size_t index : options_.delayed) {
    FillFromWindow(index, stream);
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
      if (launching_ || next_bucket_ == buckets().size() || !buckets()[next_bucket_]->full) return;
      if (holds_last_bucket_ && !ending_ && next_bucket_ + 1 == buckets().size()) return;
      flight_->recorder.Launched(next_bucket_);
      bucket = buckets()[next_bucket_++].get();
      launching_ = true;
    }
    const absl::Status launched = InBucket(*bucket, pipeline_->Launch(*bucket));
    flight_->outcome->FailCommunication(launched);
    // The others wait for a collective that this rank will never begin; but nobody waits for what is only captured.
    if (!launched.ok() && !captured) {
      communicator_->Abort(absl::StrCat("a bucket cannot be launched: ", launched.message()));
    }
    MutexLock lock(&mu_);
    launching_ = false;
    if (!launched.ok() && captured) next_bucket_ = buckets().size();
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
    rest = marks_.End(/*accumulates=*/state_ == State::kAccumulating);
    if (state_ == State::kAccumulating) {
      BecomeIdle();
      if (rest.complaint.empty()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat("end_backward: ", rest.complaint));
    }
    ending_ = true;
    flight_->recorder.EndCalled();
    int64_t unused_bytes = 0;
    for (const size_t index : marks_.unused()) unused_bytes += static_cast<int64_t>(parameters_[index].bytes());
    flight_->recorder.Unused(unused_bytes);
  }
  for (const size_t index : rest.ready) FillFromWindow(index, stream);
  for (const size_t index : rest.unused) FillFromWindow(index, stream);
  for (const size_t index : rest.missing) FillWithNone(index);
  FillDelayed(stream);
  if (!rest.complaint.empty()) {
    // The first bucket with a hole was not launched, and nor was one behind it; the last one never was, where holes are no matter.
    size_t first = buckets().size() - 1;
    for (const size_t index : rest.missing) first = std::min(first, plan_.locations[index].bucket);
    absl::Status complaint = absl::FailedPreconditionError(rest.complaint);
    if (!rest.missing.empty()) complaint = WithParameter(std::move(complaint), rest.missing.front());
    flight_->outcome->Fail(complaint, first);
  }
  LaunchFull();
  if (captured) return EndCaptured(*stream);

  {
    MutexLock lock(&mu_);
    EndStep();
  }
  const bool under_way = stream != nullptr && rest.complaint.empty();
  const absl::Status result =
      under_way ? pipeline_->MakeWait(*stream, *buckets().back()) : FinishAll(/*last_too=*/true);
  MutexLock lock(&mu_);
  if (under_way) flight_->recorder.EndReturned();
  flight_->under_way = under_way;
  BecomeIdle();
  return result;
}

absl::StatusOr<TensorView> Reducer::GradientView(size_t index) const {
  LOCKSTEP_RETURN_IF_ERROR(WithParameter(check_.Index(index, /*sparse=*/false, "gradient_view"), index));
  if (!options_.gradient_as_bucket_view) {
    return absl::FailedPreconditionError(
        "gradient_view: gradients do not live in buckets: set gradient_as_bucket_view");
  }
  if (buckets().empty()) return absl::FailedPreconditionError("gradient_view: the change of the communicator failed");
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
  return Statistics(recorded_->last());
}

absl::StatusOr<BucketStatistics> Reducer::bucket_statistics(size_t bucket) const {
  MutexLock lock(&mu_);
  const size_t count = recorded_->last().buckets.size();
  if (bucket < count) return Statistics(recorded_->last(), bucket);
  return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " is out of range: the last step had ", count));
}

std::string Reducer::Summary() const {
  MutexLock lock(&mu_);
  return log_->Summarize(recorded_->last(), recorded_plan_);
}

}  // namespace lockstep
