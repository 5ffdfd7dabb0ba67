// How it becomes known how steps went, and what they left.

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/status.h"
#include "reducer/reducer.h"

namespace lockstep {

void Reducer::EndStep() {
  buffers_due_ = true;
  EndWindow();
  flight_->order = marks_.order();
  flight_->can_be_static = marks_.can_be_static();
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

absl::Status Reducer::Finish(Flight& flight, bool joined) {
  Bucket& last = *flight.buckets.back();
  // Collectives end by their own deadlines, so this does. Where a bucket was not launched, the last one tells nothing.
  const bool launched = flight.outcome->communication().ok();
  LOCKSTEP_RETURN_IF_ERROR(launched ? pipeline_->Await(last, Deadline::Infinite())
                                    : pipeline_->Synchronize(Deadline::Infinite()));
  absl::Status status = flight.outcome->Conclude(last.failed, Remedy());
  hook_failed_ = last.failed > 0;
  {
    MutexLock lock(&mu_);
    flight.recorder.Finished();
    recorded_ = &flight.recorder;
  }
  if (std::exchange(recorded_version_, plan_version_) != plan_version_) recorded_plan_ = plan_;
  log_->Finished(recorded_->last(), recorded_plan_);
  if (options_.find_unused) log_->data().can_set_static_graph = flight.can_be_static;
  if (status.ok() && last.joined > 0 && last.joined < communicator_->size() && options_.throw_on_early_end) {
    status = absl::FailedPreconditionError(
        absl::StrCat("end_backward: ", last.joined, " rank(s) have exhausted their inputs before others"));
  }
  log_->Failed(status);
  // As the sum says, so on all ranks or on none: also where this rank alone has failed, too late for the others to hear.
  if (last.reduced && last.failed == 0) CountUse(flight);
  if (last.reduced && last.unplanned == 0 && planned_in_ == 0) planned_in_ = flight.step;
  if (last.reduced) LOCKSTEP_RETURN_IF_ERROR(RegroupBuffers(last.joined, joined));
  if (!status.ok()) return status;
  if (!flight.order.empty()) {
    replanner_->Record(flight.order, [this](const BucketPlan& plan) { return memory_->Fits(plan); });
  }
  return absl::OkStatus();
}

void Reducer::CountUse(const Flight& flight) {
  for (const std::unique_ptr<Bucket>& bucket : flight.buckets) {
    for (size_t s = 0; s < bucket->slots.size(); ++s) {
      ParameterUse& use = use_[bucket->plan().slots[s].parameter];
      use.by_any_rank += bucket->slots[s].used_anywhere;
      use.by_this_rank += bucket->slots[s].used;
    }
  }
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
  LOCKSTEP_RETURN_IF_ERROR(WithParameter(check_.Index(index, sparse, call), index));
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
  const Bucket::Slot& slot = buckets()[location.bucket]->slots[location.slot];
  return slot.used_anywhere ? slot.target : TensorView();
}

absl::StatusOr<const CoalescedGradient*> Reducer::SparseAverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/true, "sparse_average"));
  const Bucket& bucket = *buckets()[plan_.locations[index].bucket];
  return bucket.slots[0].used_anywhere ? &bucket.sparse_average : nullptr;
}

}  // namespace lockstep
