#include "reducer/replicas/replica_check.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "reducer/plan/agreement.h"
#include "reducer/replicas/compare_replicas.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<ReplicaCheck>> ReplicaCheck::Create(Communicator* communicator,
                                                                   std::vector<Parameter> tensors, OnDrift on_drift,
                                                                   Device* device,
                                                                   const kernels::BucketKernels* kernels) {
  std::unique_ptr<ReplicaCheck> check(new ReplicaCheck);
  LOCKSTEP_ASSIGN_OR_RETURN(check->hash_, ReplicaHash::Create(tensors, device, kernels));
  check->communicator_ = communicator;
  check->tensors_ = std::move(tensors);
  check->on_drift_ = std::move(on_drift);
  check->device_ = device;
  return check;
}

absl::StatusOr<absl::optional<uint32_t>> ReplicaCheck::BeginStep(uint64_t step, uint64_t known_until,
                                                                 absl::Span<const void* const> data, Stream* stream,
                                                                 std::chrono::milliseconds timeout) {
  // Before anything that the other ranks take part in, so that this rank may call again.
  LOCKSTEP_RETURN_IF_ERROR(hash_->Check(data, stream));
  if (differed_in_ != 0 && differed_in_ < known_until) {
    CompareOptions options;
    options.stream = stream;
    options.device = device_;
    options.by_holder = true;
    options.timeout = timeout;
    const absl::StatusOr<bool> equal = CompareReplicas(*communicator_, tensors_, data, options);
    const bool drifted = absl::IsDataLoss(equal.status());
    // Tensors that some rank leaves out of this step may be those that differ: the next steps look again.
    const bool looks_again = equal.ok() && !*equal && step - differed_in_ < ReplicaHash::kSlices;
    if (drifted) quiet_until_ = step + hash_->slices();
    const absl::Status reaction = !drifted               ? equal.status()
                                  : on_drift_ == nullptr ? absl::OkStatus()
                                                         : on_drift_(equal.status());
    const absl::Status agreed = AgreeOnParameters(*communicator_, reaction, "", {}, /*by_holder=*/true);
    if (!looks_again || !agreed.ok()) {
      differed_in_ = 0;  // on all ranks: they know no more of each other than what is agreed
      // Some ranks may know already that an earlier step differed, and others will learn it later.
      quiet_until_ = std::max(quiet_until_, step);
    }
    LOCKSTEP_RETURN_IF_ERROR(agreed);
    if (drifted && on_drift_ == nullptr && !std::exchange(warned_, true) && communicator_->rank() == Rank(0)) {
      LOCKSTEP_LOG(kWarning) << equal.status().message();
    }
    if (!drifted && !looks_again) LOCKSTEP_LOG(kInfo) << "replicas differed for a step, and are equal again";
  }
  return hash_->Next(step, data, stream);
}

void ReplicaCheck::HashesDiffered(uint64_t step) {
  if (step >= quiet_until_ && differed_in_ == 0) differed_in_ = step;
}

}  // namespace lockstep
