#include "reducer/reducer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/status.h"
#include "reducer/buffers/broadcast.h"

namespace lockstep {

char* Reducer::ViewAt(size_t index) const {
  if (!options_.gradient_as_bucket_view || buckets().empty() || index >= plan_.locations.size()) return nullptr;
  const BucketPlan::Location location = plan_.locations[index];
  if (location.bucket == BucketPlan::Location::kIgnored) return nullptr;
  return buckets()[location.bucket]->ViewAt(location.slot);
}

absl::Status Reducer::CheckIdle(absl::string_view call) {
  if (replanner_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(call, ": the change of the communicator failed"));
  }
  LOCKSTEP_RETURN_IF_ERROR(Annotate(communicator_->status(), call));
  MutexLock lock(&mu_);
  if (state_ == State::kIdle) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the last backward was not ended by end_backward"));
}

absl::Status Reducer::PrepareStep(bool joined) {
  if (hook_failed_) {
    // A new communicator is made before a deadline. Ranks without inputs first wait here for the others, without one.
    CollectiveRequest barrier;
    if (joined) barrier.timeout = BucketPipeline::kJoinedTimeout;
    if (options_.uneven_inputs) LOCKSTEP_RETURN_IF_ERROR(communicator_->Run(barrier));
    LOCKSTEP_RETURN_IF_ERROR(pipeline_->RenewHookCommunicator());
  }
  hook_failed_ = false;
  uint64_t next = 0;
  {
    MutexLock lock(&mu_);
    next = step_ + 1;
  }
  if (planned_in_ == 0 || next < planned_in_ + Replanner::kSteps) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(FinishAll(/*last_too=*/false));
  LOCKSTEP_ASSIGN_OR_RETURN(const BucketGroups groups, replanner_->Take());
  planned_in_ = 0;
  if (groups.empty()) return absl::OkStatus();
  absl::Status adopted = Adopt(LayOut(parameters_, rules_, groups));
  // The other ranks' buckets are the new ones.
  if (!adopted.ok()) communicator_->Abort(absl::StrCat("new buckets cannot be made: ", adopted.message()));
  return adopted;
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

absl::StatusOr<absl::optional<uint32_t>> Reducer::Prepare(absl::string_view call, const BackwardOptions& options,
                                                          bool joined) {
  LOCKSTEP_RETURN_IF_ERROR(PrepareStep(joined));
  LOCKSTEP_RETURN_IF_ERROR(HoldCommunicator(call));
  if (replicas_ == nullptr) return absl::nullopt;
  uint64_t next = 0;
  {
    MutexLock lock(&mu_);
    next = step_ + 1;
  }
  const std::chrono::milliseconds timeout = joined ? BucketPipeline::kJoinedTimeout : std::chrono::milliseconds(0);
  replicas_checked_.begin = StepClock::now();
  auto hash = replicas_->BeginStep(next, runs_ahead_ ? next - 1 : next, options.replicas, options.stream, timeout);
  replicas_checked_.end = StepClock::now();
  if (!hash.ok()) {
    MutexLock lock(&mu_);
    BecomeIdle();
    // If on_drift has refused the step, ranks with inputs may try it again, whatever this rank's own on_drift returns.
    if (joined && communicator_->status().ok()) return absl::FailedPreconditionError(hash.status().message());
    return Annotate(hash.status(), call);
  }
  return hash;
}

void Reducer::BecomeIdle() {
  state_ = State::kIdle;
  if (std::exchange(holds_, false)) communicator_->Release();
}

void Reducer::BeginStep(bool joined, absl::optional<uint32_t> hash, char* replayed_trailer) {
  state_ = State::kArmed;
  ending_ = false;
  delayed_filled_ = false;
  captures_.ForgetStream();
  ++step_;
  Event* const after = flight_->under_way ? pipeline_->ReleasedBy(*buckets().back()) : nullptr;
  flight_ = &next_flight();
  flight_->step = step_;
  flight_->captured = replayed_trailer != nullptr;
  flight_->outcome->Begin(step_);
  pipeline_->Begin({flight_->outcome.get(), &flight_->record, step_, buckets().size(), replanner_->requested(), joined,
                    hash, replayed_trailer, after});
  record_.Sample();
  flight_->record.Begin(step_, plan_, std::exchange(forward_begin_, StepTime()));
  flight_->record.replicas = std::exchange(replicas_checked_, StepInterval());
  // A complaint may come after every gradient has: the last bucket is to carry it.
  const bool holds_last = options_.find_unused || options_.static_graph || !options_.delayed.empty();
  filler_.Begin(
      {&plan_, buckets(), pipeline_.get(), communicator_, flight_->outcome.get(), &flight_->record, flight_->captured},
      options_.overlap ? buckets().size() - holds_last : 0);
}

absl::Status Reducer::BeginBackward(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("begin_backward"));
  const bool captured = options.sync && options.stream != nullptr && options.stream->capturing();
  // An earlier step may still be under way in our buckets; and a graph cannot wait for one.
  LOCKSTEP_RETURN_IF_ERROR(captured ? FinishAll(/*last_too=*/false) : FinishIfUnderWay(next_flight()));
  if (options.sync && options_.uneven_inputs && buffers_ != nullptr && buffers_->due()) {
    return absl::FailedPreconditionError(
        "begin_backward: ranks that have joined await this step's buffers: call begin_forward");
  }
  {
    MutexLock lock(&mu_);
    LOCKSTEP_RETURN_IF_ERROR(ready_set_.Begin(options.unused));
    why_missing_.reset();
    // Then gradients stay borrowed for the whole window.
    if (!options_.find_unused) claims_.NextRound();
    if (!options.sync) {
      ending_ = false;
      state_ = State::kAccumulating;
      return absl::OkStatus();
    }
  }
  if (captured) return BeginCaptured(options);
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<uint32_t> hash, Prepare("begin_backward", options, /*joined=*/false));
  std::vector<Filling> unused;
  {
    MutexLock lock(&mu_);
    BeginStep(/*joined=*/false, hash);
    unused_at_end_.clear();
    begin_stream_ = options.stream;
    for (const size_t index : ready_set_.unused()) {
      // The embedder did not say that it has written its view.
      if (options_.static_graph && options_.gradient_as_bucket_view) {
        unused_at_end_.push_back(index);
      } else {
        unused.push_back(FillFromWindow(index, options.stream));
      }
    }
  }
  for (const Filling& filling : unused) filler_.Complete(filling);
  LaunchFull();
  return absl::OkStatus();
}

absl::Status Reducer::BeginCaptured(const BackwardOptions& options) {
  MutexLock lock(&mu_);
  LOCKSTEP_RETURN_IF_ERROR(Captures::Check({*communicator_, options_, parameters_, ready_set_,
                                            options.unused.has_value(), buffers_ != nullptr, replanner_->requested()}));
  LOCKSTEP_RETURN_IF_ERROR(HoldCommunicator("begin_backward"));
  const absl::StatusOr<char*> trailer = captures_.Add(step_ + 1, accelerator_.device, *buckets().back());
  if (!trailer.ok()) {
    BecomeIdle();
    return trailer.status();
  }
  BeginStep(/*joined=*/false, absl::nullopt, *trailer);
  const absl::Status forked = pipeline_->MarkPoint(*buckets().front(), *options.stream);
  if (!forked.ok()) BecomeIdle();
  return forked;
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, Stream* stream) {
  return Mark(index, check_.Gradient(index, gradient, ViewAt(index)), {gradient, gradient, {}, stream});
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream) {
  absl::Status checked = check_.Gradient(index, gradient, ViewAt(index));
  if (checked.ok()) checked = check_.Target(index, target, ViewAt(index));
  return Mark(index, std::move(checked), {gradient, target, {}, stream});
}

absl::Status Reducer::MarkReadySparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values,
                                      Stream* stream) {
  return Mark(index, check_.Sparse(index, rows, values), {values, {}, rows, stream});
}

absl::Status Reducer::RefuseMark(size_t index, const absl::Status& error) {
  const std::string name = index < parameters_.size() ? absl::StrCat(": ", Describe(index, parameters_[index])) : "";
  return Refuse(index, Annotate(error, absl::StrCat("mark_ready", name)));
}

absl::Status Reducer::Refuse(size_t index, absl::Status error) {
  error = WithParameter(std::move(error), index);
  MutexLock lock(&mu_);
  const bool expected = index < parameters_.size() && !parameters_[index].ignored;
  if (!expected || state_ == State::kIdle || ending_) return error;
  ready_set_.Refuse(index, error);
  if (ready_set_.is_ready(index)) TellRefusal(index, error);
  return error;
}

absl::Status Reducer::Claim(size_t index, const GradientRef& gradient) {
  using Until = GradientClaims::Until;
  const BucketPlan::Location at = plan_.locations[index];
  const Bucket& bucket = *buckets()[at.bucket];
  const bool delayed = bucket.plan().delayed;
  if (delayed && delayed_filled_ && state_ == State::kArmed &&
      (bucket.slots[at.slot].used || gradient.data.data() == bucket.SumAt(at.slot))) {
    return absl::FailedPreconditionError(
        absl::StrCat("mark_ready: ", Describe(index, parameters_[index]),
                     " is delayed, and its memory is being averaged since the gradient of the trigger came"));
  }
  // In these cases a backward without sync leaves gradients to a later one.
  const bool keeps = state_ == State::kArmed || options_.find_unused || ready_set_.counting();
  const Until until = delayed ? Until::kTaken : keeps ? Until::kRoundEnds : Until::kChecked;
  absl::Status claimed = claims_.Claim(index, gradient.data, gradient.target, bucket.SumAt(at.slot), until,
                                       /*ordered=*/gradient.stream != nullptr);
  return claimed.ok() ? claimed : Annotate(claimed, "mark_ready");
}

void Reducer::TellRefusal(size_t index, const absl::Status& error) {
  if (state_ != State::kArmed) return;
  const auto refused = absl::FailedPreconditionError(absl::StrCat("a mark was refused (", error.message(), ")"));
  flight_->outcome->Fail(WithParameter(refused, index), buckets().size() - 1, /*provisional=*/true);
}

absl::StatusOr<ReadySet::Effect> Reducer::TakeMark(size_t index, const GradientRef& gradient) {
  if (state_ == State::kArmed) {
    LOCKSTEP_RETURN_IF_ERROR(captures_.CheckStream(gradient.stream, flight_->captured));
  }
  if (ready_set_.takes_marks(index)) LOCKSTEP_RETURN_IF_ERROR(Claim(index, gradient));
  absl::StatusOr<ReadySet::Effect> effect = ready_set_.Mark(index);
  if (!effect.ok()) TellRefusal(index, effect.status());
  return effect;
}

absl::Status Reducer::Mark(size_t index, absl::Status checked, const GradientRef& given) {
  if (!checked.ok()) return Refuse(index, std::move(checked));
  Filling filling;
  std::vector<Filling> delayed;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return WithParameter(absl::FailedPreconditionError(absl::StrCat(
                               "mark_ready: ", Describe(index, parameters_[index]), " was marked outside a backward")),
                           index);
    }
    // Without sync a target is ignored. If the next synchronised backward does not mark the parameter, the average goes to the reducer's
    // memory.
    static const TensorView kOurs;
    const bool only_read = state_ == State::kAccumulating &&
                           (given.target.data() != given.data.data() || given.target.dtype() != given.data.dtype());
    const GradientRef gradient = {given.data, only_read ? kOurs : given.target, given.rows, given.stream};
    const absl::StatusOr<ReadySet::Effect> effect = TakeMark(index, gradient);
    if (!effect.ok()) {
      ready_set_.Refuse(index, effect.status());
      return WithParameter(effect.status(), index);
    }
    if (*effect == ReadySet::Effect::kWaits || state_ == State::kAccumulating) {
      window_[index] = {gradient.data, gradient.target, gradient.rows, gradient.stream};
      if (gradient.stream == nullptr || !gradient.stream->is_callers() || gradient.stream->capturing()) {
        return absl::OkStatus();
      }
      // The thread that fills the bucket has another stream of that name.
      window_[index].stream = nullptr;
      const absl::Status reached = Annotate(gradient.stream->Synchronize(Deadline::Infinite()), "mark_ready");
      if (!reached.ok()) ready_set_.Refuse(index, reached);
      return WithParameter(reached, index);
    }
    flight_->record.ready_order.push_back(static_cast<uint32_t>(index));
    filling = filler_.Fill(index, gradient);
    if (!options_.delayed.empty() && index == options_.delayed_trigger) FillDelayed(gradient.stream, &delayed);
  }
  bool full = filler_.Complete(filling);
  for (const Filling& one : delayed) full |= filler_.Complete(one);
  if (full) LaunchFull();
  return absl::OkStatus();
}

absl::Status Reducer::MarkUnused(size_t index, Stream* stream) {
  if (index >= parameters_.size() || parameters_[index].ignored) {
    return WithParameter(absl::InvalidArgumentError(absl::StrCat("mark_unused: parameter ", index, " has no gradient")),
                         index);
  }
  Filling filling;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return WithParameter(absl::FailedPreconditionError("mark_unused: outside a backward"), index);
    }
    if (state_ == State::kArmed) {
      if (flight_->captured) {
        return WithParameter(
            absl::FailedPreconditionError("mark_unused: a step with unused parameters cannot be captured"), index);
      }
      LOCKSTEP_RETURN_IF_ERROR(WithParameter(captures_.CheckStream(stream, /*captured=*/false), index));
    }
    const bool known = ready_set_.is_unused(index);
    LOCKSTEP_RETURN_IF_ERROR(WithParameter(ready_set_.MarkUnused(index), index));
    if (known || !ready_set_.is_unused(index) || state_ == State::kAccumulating) return absl::OkStatus();
    filling = FillFromWindow(index, stream);
  }
  if (filler_.Complete(filling)) LaunchFull();
  return absl::OkStatus();
}

void Reducer::ExplainMissing(std::string reason) {
  MutexLock lock(&mu_);
  why_missing_ = std::move(reason);
}

Reducer::Filling Reducer::FillFromWindow(size_t index, Stream* stream) {
  if (ready_set_.used_in_window(index)) {
    const Gradient& gradient = window_[index];
    return filler_.Fill(index, {gradient.data, gradient.target, gradient.rows, gradient.stream});
  }
  return FillUnused(index, stream);
}

Reducer::Filling Reducer::FillUnused(size_t index, Stream* stream) {
  const BucketPlan::Location location = plan_.locations[index];
  Bucket& bucket = *buckets()[location.bucket];
  const char* const view = bucket.SumAt(location.slot);
  const bool keeps = view != nullptr;
  bucket.slots[location.slot].keeps = keeps;
  if (keeps) {
    const absl::Status claimed =
        claims_.Claim(index, {}, {}, view, GradientClaims::Until::kRoundEnds, /*ordered=*/stream != nullptr);
    flight_->outcome->Fail(Annotate(claimed, "an unused gradient"), bucket.index());
    if (!claimed.ok()) claims_.Overwrite(index, view);
  }
  return filler_.Stage(index, keeps ? stream : nullptr);
}

void Reducer::LaunchFull() {
  flight_->outcome->Fail(claims_.TakeOverwritten(), buckets().size() - 1);
  filler_.LaunchFull();
}

void Reducer::FillDelayed(Stream* stream, std::vector<Filling>* fillings) {
  if (std::exchange(delayed_filled_, true)) return;
  for (const size_t index : options_.delayed) {
    fillings->push_back(FillFromWindow(index, stream));
    ready_set_.TakeDelayed(index);
    claims_.Take(index);
  }
}

absl::StatusOr<bool> Reducer::TryEndBackward(Stream* stream, Deadline deadline) {
  if (awaits_) return AwaitEnd(deadline);
  ReadySet::Rest rest;
  std::vector<Filling> fillings;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError("end_backward: no backward was begun");
    }
    const bool accumulates = state_ == State::kAccumulating;
    rest = ready_set_.End(accumulates, /*cut_short=*/why_missing_.has_value());
    if (!rest.complaint.empty() && !why_missing_.value_or("").empty()) rest.complaint = *why_missing_;
    if (accumulates) {
      BecomeIdle();
      if (rest.complaint.empty()) return true;
      return absl::FailedPreconditionError(absl::StrCat("end_backward: ", rest.complaint));
    }
    if (flight_->captured && (stream == nullptr || !stream->capturing())) {
      EndStep();
      claims_.Ended(flight_->round);
      BecomeIdle();
      return absl::FailedPreconditionError(
          absl::StrCat("end_backward: backward ", step_, " was being captured, and ",
                       stream == nullptr ? "no stream is named" : "its stream is not any more",
                       ": it is given up, and a graph with a part of it must not be launched"));
    }
    ending_ = true;
    StepRecord& record = flight_->record;
    record.end_called = StepClock::now();
    for (const size_t index : ready_set_.unused()) {
      record.unused_parameter_bytes += static_cast<int64_t>(parameters_[index].bytes());
    }
    for (const size_t index : rest.ready) fillings.push_back(FillFromWindow(index, stream));
    for (const size_t index : rest.unused) fillings.push_back(FillFromWindow(index, stream));
    Stream* const after = stream == nullptr ? begin_stream_ : stream;
    for (const size_t index : unused_at_end_) fillings.push_back(FillFromWindow(index, after));
    unused_at_end_.clear();
    for (const size_t index : rest.missing) fillings.push_back(FillUnused(index, stream));
    FillDelayed(stream, &fillings);
  }
  for (const Filling& filling : fillings) filler_.Complete(filling);
  if (!rest.complaint.empty()) {
    // The first bucket with a hole was not launched, and nor was one behind it; the last one never was, where holes are no matter.
    size_t first = buckets().size() - 1;
    for (const size_t index : rest.missing) first = std::min(first, plan_.locations[index].bucket);
    absl::Status complaint = absl::FailedPreconditionError(rest.complaint);
    if (rest.first_wrong.has_value()) complaint = WithParameter(std::move(complaint), *rest.first_wrong);
    flight_->outcome->Fail(complaint, first);
  }
  filler_.OpenAll();
  LaunchFull();
  if (flight_->captured) {
    LOCKSTEP_RETURN_IF_ERROR(EndCaptured(*stream));
    return true;
  }

  {
    MutexLock lock(&mu_);
    EndStep();
  }
  if (stream == nullptr || !rest.complaint.empty() || options_.preserve_gradients) return AwaitEnd(deadline);
  const absl::Status waits = pipeline_->MakeWait(*stream, *buckets().back());
  if (!waits.ok()) {  // so this call does
    LOCKSTEP_ASSIGN_OR_RETURN(const bool ended, AwaitEnd(deadline));
    if (ended) return waits;
    return false;
  }
  claims_.Issued(flight_->round, pipeline_->ReleasedBy(*buckets().back()));
  MutexLock lock(&mu_);
  flight_->record.end = StepClock::now();
  flight_->under_way = true;
  BecomeIdle();
  return true;
}

absl::StatusOr<bool> Reducer::AwaitEnd(Deadline deadline) {
  awaits_ = absl::IsDeadlineExceeded(Await(*flight_, deadline)) && deadline.passed();
  if (awaits_) return false;
  const absl::Status result = FinishAll(/*last_too=*/true);
  MutexLock lock(&mu_);
  flight_->under_way = false;
  BecomeIdle();
  LOCKSTEP_RETURN_IF_ERROR(result);
  return true;
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
  if (replanner_ == nullptr) {
    return absl::FailedPreconditionError("request_replan: the change of the communicator failed");
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  replanner_->Request();
  return absl::OkStatus();
}

std::string Reducer::ExportPlan() const { return PlanToText(parameters_, GroupsOf(plan_)); }

absl::Status Reducer::Broadcast(absl::Span<const TensorView> tensors, Rank root) {
  return BroadcastCoalesced(*communicator_, tensors, root);
}

}  // namespace lockstep
