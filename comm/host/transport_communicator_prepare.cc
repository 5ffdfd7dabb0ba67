// Prepared collectives of a TransportCommunicator.

#include <utility>

#include "base/status.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"

namespace lockstep {

class TransportCommunicator::Prepared : public PreparedCollective {
 public:
  Prepared(TransportCommunicator* communicator, const CollectiveRequest& request, Plan plan)
      : communicator_(communicator),
        request_(request),
        plan_(std::move(plan)),
        work_(MakeRef<CallState>(communicator->engine_)) {
    request_.counts = request_.output_counts = {};
    request_.wait = std::chrono::milliseconds::zero();
    work_->Complete(absl::OkStatus());
  }

  absl::Status Run() override {
    if (communicator_->InGroup()) return Start();
    LOCKSTEP_RETURN_IF_ERROR(CheckIdle());
    return communicator_->RunPlanned(request_, &plan_);
  }

  absl::Status Start() override {
    LOCKSTEP_RETURN_IF_ERROR(CheckIdle());
    work_->Reset();
    absl::Status status = communicator_->StartPlanned(request_, &plan_, &work_);
    if (!status.ok()) work_->Complete(status);
    return status;
  }

  bool done() const override { return work_->done().load(std::memory_order_acquire); }
  absl::Status Wait(Deadline deadline) override { return Work(work_).Wait(deadline); }
  void OnComplete(CompletionCallback callback) override { Work(work_).OnComplete(std::move(callback)); }

 private:
  absl::Status CheckIdle() const {
    if (done()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "the prepared collective is still under way: wait for it before it is "
        "started again");
  }

  TransportCommunicator* const communicator_;
  CollectiveRequest request_;
  const Plan plan_;
  Ref<CallState> work_;  // never null
};

absl::StatusOr<std::unique_ptr<PreparedCollective>> TransportCommunicator::Prepare(const CollectiveRequest& request) {
  MutexLock lock(mu());
  if (!status_.ok()) return Over(NameOf(request));
  LOCKSTEP_ASSIGN_OR_RETURN(const Plan* plan, FindPlan(request));
  return std::make_unique<Prepared>(this, request, *plan);
}

}  // namespace lockstep
