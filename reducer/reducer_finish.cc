// How it becomes known how steps went, and what they left.

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace {

// What to do about a step that failed; `optimized`: buckets that the optimizer has stepped.
std::string Hint(const ReducerOptions& options, const std::vector<size_t>& optimized) {
  std::string text = options.preserve_gradients        ? "All gradients are as they were when they were marked"
                     : options.gradient_as_bucket_view ? "Gradients of the buckets concerned are lost"
                                                       : "No gradient of the buckets concerned was changed";
  if (!optimized.empty()) {
    absl::StrAppend(&text, "; the optimizer has already stepped bucket(s) ", absl::StrJoin(optimized, ", "));
  }
  return text + "; the next step may be tried.";
}

// A step has succeeded.
void CountUse(absl::Span<const std::unique_ptr<Bucket>> buckets, std::vector<ParameterUse>* uses) {
  for (const std::unique_ptr<Bucket>& bucket : buckets) {
    for (size_t s = 0; s < bucket->slots.size(); ++s) {
      ParameterUse& use = (*uses)[bucket->plan().slots[s].parameter];
      use.by_any_rank += bucket->slots[s].used_anywhere;
      use.by_this_rank += bucket->slots[s].used;
    }
  }
}

}  // namespace

void Reducer::EndStep() {
  if (buffers_ != nullptr) buffers_->StepEnded();
  ready_set_.EndWindow();
  flight_->round = claims_.NextRound();
  flight_->order = ready_set_.order();
  flight_->can_be_static = ready_set_.can_be_static();
}

absl::Status Reducer::FinishIfUnderWay(Flight& flight) {
  return std::exchange(flight.under_way, false) ? Finish(flight, /*joined=*/false) : absl::OkStatus();
}

absl::Status Reducer::FinishAll(bool last_too) {
  Flight& before = next_flight();
  const absl::Status first = &before == flight_ ? absl::OkStatus() : FinishIfUnderWay(before);
  const absl::Status last = last_too ? Finish(*flight_, /*joined=*/false) : FinishIfUnderWay(*flight_);
  if (first.ok() || last.ok()) return first.ok() ? last : first;
  return Reworded(first, absl::StrCat(first.message(), "; ", last.message()));
}

absl::Status Reducer::Await(Flight& flight, Deadline deadline) {
  // Where a bucket was not launched, the last one tells nothing.
  const bool launched = flight.outcome->communication().ok();
  return pipeline_->AwaitOrEnd(launched ? flight.buckets.back().get() : nullptr, deadline);
}

absl::Status Reducer::Finish(Flight& flight, bool joined) {
  // Collectives end by their own deadlines, so this does.
  const absl::Status awaited = Await(flight, Deadline::Infinite());
  claims_.Ended(flight.round);
  if (!awaited.ok()) {
    // Our streams do no more, and the other ranks wait for their collectives.
    communicator_->Abort(absl::StrCat("a reducer's stream has failed: ", awaited.message()));
    if (!joined) LOCKSTEP_RETURN_IF_ERROR(Restore(flight));
    return awaited;
  }
  Bucket& last = *flight.buckets.back();
  flight.outcome->Fail(claims_.TakeOverwritten(), last.index());
  absl::Status status = flight.outcome->Conclude(last.failed, Hint(options_, pipeline_->optimized()));
  hook_failed_ = last.failed > 0;
  if (status.ok() && !last.reduced) {
    status = absl::InternalError("end_backward: not all buckets were sent");
    communicator_->Abort(std::string(status.message()));  // others wait for them
  }
  flight.record.Finish();
  std::swap(flight.record, record_.last);
  if (trace_ != nullptr) {
    const absl::Status traced = trace_->Append(record_.last);
    if (!traced.ok()) LOCKSTEP_LOG(kWarning) << traced.message();
  }
  if (LogEnabled(LogLevel::kDebug)) LOCKSTEP_LOG(kDebug) << "\n" << Summary(record_);
  if (options_.find_unused) record_.can_set_static_graph = flight.can_be_static;
  if (status.ok() && last.joined > 0 && last.joined < communicator_->size() && options_.throw_on_early_end) {
    status = absl::FailedPreconditionError(
        absl::StrCat("end_backward: ", last.joined, " rank(s) have exhausted their inputs before others"));
  }
  if (!status.ok() && !joined) LOCKSTEP_RETURN_IF_ERROR(Restore(flight));
  if (record_.error.empty()) record_.error = std::string(status.message());
  // As the sum says, so on all ranks or on none: also where this rank alone has failed, too late for the others to hear.
  if (last.reduced && last.failed == 0) CountUse(flight.buckets, &use_);
  if (last.reduced && last.hashes_differ) replicas_->HashesDiffered(flight.step);
  if (last.reduced && last.failed == 0 && last.unrequested == 0 && planned_in_ == 0) {
    planned_in_ = flight.step;
    replanner_->Record(flight.order, [this](const BucketPlan& plan) { return memory_->Fits(plan); });
  }
  // After an early end that is to be thrown nobody goes on without the ranks that have joined.
  if (last.reduced && buffers_ != nullptr && !options_.throw_on_early_end) {
    LOCKSTEP_RETURN_IF_ERROR(buffers_->Regroup(last.joined, joined));
  }
  return status;
}

absl::Status Reducer::Restore(const Flight& flight) {
  absl::Status restored;
  if (!communicator_->status().ok() && &flight == flight_ && accelerator_.kernels == nullptr) {
    // A stopped peer may write its results when it wakes, also over what was put back before.
    restored = memory_->Detach();
    for (const auto& bucket : flight.buckets) {
      if (bucket->written == Bucket::Written::kFlat) bucket->PutBack();
    }
  }
  if (restored.ok() && options_.preserve_gradients) restored = pipeline_->Restore(flight.buckets);
  return Annotate(restored, "gradients cannot be put back");
}

absl::Status Reducer::EndCaptured(Stream& stream) {
  absl::Status status = flight_->outcome->communication();
  status.Update(pipeline_->MakeWait(stream, *buckets().back()));
  const bool whole = status.ok();
  if (whole) status = flight_->outcome->Conclude(/*failed_ranks=*/0, "");
  MutexLock lock(&mu_);
  EndStep();
  claims_.Ended(flight_->round);
  BecomeIdle();
  const char* const launched = !whole                     ? ", which is not whole: its graph must not be launched"
                               : flight_->outcome->told() ? ", each launch of which fails on every rank"
                                                          : ", in which that came last: its graph must not be launched";
  return Annotate(status, absl::StrCat("end_backward: captured backward ", step_, launched));
}

absl::Status Reducer::CheckReplays() {
  if (buckets().empty()) {
    return absl::FailedPreconditionError("check_replays: the change of the communicator failed");
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  absl::optional<Captures::Failure> failure;
  {
    MutexLock lock(&mu_);
    failure = captures_.FindFailure();
  }
  if (!failure.has_value()) return absl::OkStatus();
  return Annotate(flight_->outcome->Incomplete(failure->step, failure->ranks, Hint(options_, pipeline_->optimized())),
                  "a replay");
}

absl::Status Reducer::AwaitAverages(size_t index, bool sparse, absl::string_view call) {
  LOCKSTEP_RETURN_IF_ERROR(WithParameter(check_.Index(index, sparse, call), index));
  LOCKSTEP_RETURN_IF_ERROR(FinishAll(/*last_too=*/false));
  MutexLock lock(&mu_);
  if (flight_->captured) {
    return absl::FailedPreconditionError(absl::StrCat(
        call, ": the last backward was captured: once it is replayed, averages are where gradients were marked"));
  }
  if (state_ == State::kIdle && step_ > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": there is none before a synchronised backward has ended"));
}

absl::StatusOr<TensorView> Reducer::AverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/false, "averaged_gradient"));
  const BucketPlan::Location location = plan_.locations[index];
  Bucket::Slot& slot = buckets()[location.bucket]->slots[location.slot];
  // Nothing is written, so it has no target unless this rank gave one.
  if (parameters_[index].elements() == 0) slot.target = DenseView(parameters_[index], nullptr);
  return slot.used_anywhere ? slot.target : TensorView();
}

absl::StatusOr<GradientState> Reducer::StateOf(size_t index) {
  const bool sparse = index < parameters_.size() && parameters_[index].sparse;
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, sparse, "gradient_state"));
  const BucketPlan::Location location = plan_.locations[index];
  return buckets()[location.bucket]->StateOf(location.slot);
}

absl::StatusOr<const CoalescedGradient*> Reducer::SparseAverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/true, "averaged_rows"));
  const Bucket& bucket = *buckets()[plan_.locations[index].bucket];
  return bucket.slots[0].used_anywhere ? &bucket.sparse_average : nullptr;
}

}  // namespace lockstep
