// Groups of a TransportCommunicator: calls that are collected and launched together.

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"

namespace lockstep {

bool TransportCommunicator::GroupIsThisThreads() const { return group_->thread == std::this_thread::get_id(); }

bool TransportCommunicator::InGroup() const {
  MutexLock lock(mu());
  return Collecting();
}

absl::Status TransportCommunicator::Refuse(const absl::Status& refusal) {
  MutexLock lock(mu());
  if (Collecting()) group_->refused.Update(refusal);
  return refusal;
}

absl::Status TransportCommunicator::StartGroup() {
  MutexLock lock(mu());
  if (Collecting()) {
    ++group_->depth;
    return absl::OkStatus();
  }
  if (group_ != nullptr) {
    return absl::FailedPreconditionError("another thread has a group open on this communicator");
  }
  if (!status_.ok()) return Over({"a group", {}});
  group_ = std::make_unique<Group>();
  group_->thread = std::this_thread::get_id();
  group_->work = MakeRef<CallState>(engine_);
  group_->work->set_collector(group_->thread);
  return absl::OkStatus();
}

absl::Status TransportCommunicator::Collect(const CollectiveRequest& request, const Plan* plan, Ref<CallState> state) {
  absl::Status status = status_.ok() ? status_ : Over(NameOf(request));
  if (status.ok() && plan == nullptr) {
    absl::StatusOr<const Plan*> found = FindPlan(request);
    status = found.status();
    if (found.ok()) plan = *found;
  }
  group_->refused.Update(status);
  if (!status.ok()) return status;
  state->set_collector(group_->thread);
  Group::Member& member = group_->members.emplace_back();
  member.state = std::move(state);
  member.request = request;
  // Only the plan still needs them, and it has its own.
  member.request.counts = member.request.output_counts = {};
  member.request.wait = std::chrono::milliseconds::zero();
  member.plan = *plan;
  return absl::OkStatus();
}

absl::StatusOr<Work> TransportCommunicator::EndGroup() {
  std::unique_ptr<Group> group;
  {
    MutexLock lock(mu());
    if (!Collecting()) return absl::FailedPreconditionError("this thread has no group open on this communicator");
    if (--group_->depth > 0) return Work(group_->work);
    group = std::move(group_);
  }
  LOCKSTEP_RETURN_IF_ERROR(LaunchGroup(group.get()));
  return Work(group->work);
}

absl::Status TransportCommunicator::LaunchGroup(Group* group) {
  absl::Status status = group->refused;
  if (options_.checked && status.ok()) {
    MutexLock lock(&checked_mu_);
    for (const Group::Member& member : group->members) {
      if (member.message == nullptr && status.ok()) status = CompareSignatures(member.request, &member.plan);
    }
  }
  MutexLock lock(mu());
  std::vector<Call*> calls;
  for (const Group::Member& member : group->members) {
    if (member.message != nullptr || !status.ok()) continue;
    absl::StatusOr<Call*> call = PrepareCall(member.request, &member.plan);
    status = call.status();
    if (call.ok()) calls.push_back(*call);
  }
  // Preparing gives up the lock now and then.
  if (!status_.ok()) status.Update(Over({absl::StrCat("a group of ", group->members.size(), " calls"), {}}));
  if (!status.ok()) {
    for (Call* const call : calls) FreeCall(call);
    group->Drop(
        Reworded(status, absl::StatusCode::kCancelled, absl::StrCat("the group was not launched: ", status.message())));
    engine_->Notify();
    return status;
  }
  // One more than there are, so that the group is not done before all of it is launched.
  group->work->set_collector({});
  group->work->members_left = static_cast<int>(group->members.size()) + 1;
  auto call = calls.begin();
  for (Group::Member& member : group->members) {
    member.state->set_collector({});
    member.state->group = group->work;
    if (member.message != nullptr) {
      LaunchMessage(std::move(member.message), /*background=*/true);
    } else {
      LaunchCall(*call++, member.request, member.state.get(), member.state, /*check=*/false);
    }
  }
  if (--group->work->members_left == 0) group->work->Complete(group->work->first_error);
  return absl::OkStatus();
}

}  // namespace lockstep
