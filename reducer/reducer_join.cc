// What a reducer does beside backwards: buffers around the forward, and the steps of a rank that has no inputs.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"
#include "reducer/buffers/broadcast.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace {

// Of the ranks that joined in the latest step the highest.
absl::StatusOr<Rank> LastToJoin(Communicator& communicator, uint64_t joined_in) {
  const uint64_t mine = joined_in << 32 | static_cast<uint32_t>(communicator.rank().value());
  uint64_t last = 0;
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kU64;
  request.op = ReduceOp::kMax;
  request.count = 1;
  request.input = &mine;
  request.output = &last;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return Rank(static_cast<int>(last & 0xffffffff));
}

}  // namespace

absl::Status Reducer::SetBuffers(absl::Span<const TensorView> buffers, BufferOptions options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("set_buffers"));
  options.highest_with_inputs = options_.uneven_inputs;
  LOCKSTEP_ASSIGN_OR_RETURN(buffers_, BufferSync::Create(communicator_, std::move(options), buffers));
  record_.broadcast_buffers = true;
  return absl::OkStatus();
}

absl::StatusOr<FreshBuffers> Reducer::BeginForward(const ForwardOptions& options) {
  forward_begin_ = StepClock::now();
  record_.Sample();
  return SyncBuffers(options, BufferOptions::When::kBeforeForward);
}

absl::Status Reducer::EndForward(const ForwardOptions& options) {
  return SyncBuffers(options, BufferOptions::When::kAfterForward).status();
}

absl::StatusOr<FreshBuffers> Reducer::SyncBuffers(const ForwardOptions& options, BufferOptions::When when) {
  if (buffers_ == nullptr || buffers_->options().when != when) return FreshBuffers();
  // The last step says who takes part.
  if (options_.uneven_inputs) LOCKSTEP_RETURN_IF_ERROR(FinishAll(/*last_too=*/false));
  if (!buffers_->due()) return FreshBuffers();
  return buffers_->Run(options.buffers, /*joined=*/false);
}

absl::Status Reducer::ShadowStep() {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<uint32_t> hash, Prepare("join", {}, /*joined=*/true));
  std::vector<Filling> zeros;
  {
    MutexLock lock(&mu_);
    BeginStep(/*joined=*/true, hash);
    ending_ = true;
    flight_->record.end_called = StepClock::now();
    for (const BucketPlan::Bucket& bucket : plan_.buckets) {
      for (const BucketPlan::Slot& slot : bucket.slots) zeros.push_back(filler_.Stage(slot.parameter, nullptr));
    }
  }
  for (const Filling& filling : zeros) filler_.Complete(filling);
  filler_.OpenAll();
  filler_.LaunchFull();
  {
    MutexLock lock(&mu_);
    EndStep();
  }
  const absl::Status status = Finish(*flight_, /*joined=*/true);
  MutexLock lock(&mu_);
  BecomeIdle();
  return status;
}

absl::Status Reducer::Join(absl::Span<const TensorView> model, absl::Span<const TensorView> buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("join"));
  if (!options_.uneven_inputs) {
    return absl::FailedPreconditionError("join: the reducer was not made for uneven inputs: set uneven_inputs");
  }
  LOCKSTEP_RETURN_IF_ERROR(FinishAll(/*last_too=*/false));
  LOCKSTEP_RETURN_IF_ERROR(HoldCommunicator("join"));  // else none of the steps can begin
  uint64_t joined_in = 0;
  {
    MutexLock lock(&mu_);
    BecomeIdle();
    joined_in = step_ + 1;
  }
  // Those who have inputs do not know yet.
  if (buffers_ != nullptr && buffers_->due()) {
    LOCKSTEP_RETURN_IF_ERROR(buffers_->Run(buffers, /*joined=*/true, BucketPipeline::kJoinedTimeout).status());
  }
  while (true) {
    buckets().back()->joined = 0;
    const absl::Status status = ShadowStep();
    // Ranks that have inputs may try again a step that failed, or that on_drift has refused.
    if (!status.ok() && !absl::IsFailedPrecondition(status) && !absl::IsDataLoss(status)) return status;
    LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
    if (buckets().back()->joined == communicator_->size()) break;
    if (options_.throw_on_early_end) {
      return absl::FailedPreconditionError(
          absl::StrCat("join: rank ", communicator_->rank().value(), " has exhausted its inputs before others"));
    }
  }
  if (buffers_ != nullptr) buffers_->Restart();
  LOCKSTEP_ASSIGN_OR_RETURN(const Rank last, LastToJoin(*communicator_, joined_in));
  return BroadcastCoalesced(*communicator_, model, last);
}

}  // namespace lockstep
