// Groups of a DeviceCommunicator: calls on the device are collected here, those on the host by the host communicator.

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/device/device_call.h"
#include "comm/device/device_communicator.h"
#include "comm/record/operation_error.h"

namespace lockstep {

bool DeviceCommunicator::Collecting() const {
  return group_ != nullptr && group_->thread == std::this_thread::get_id();
}

absl::Status DeviceCommunicator::StartGroup() {
  MutexLock lock(&group_mu_);
  if (Collecting()) {
    ++group_->depth;
    return absl::OkStatus();
  }
  if (group_ != nullptr) {
    return absl::FailedPreconditionError("another thread has a group open on this communicator");
  }
  LOCKSTEP_RETURN_IF_ERROR(NotStarted(failure_->status(), {"a group", {}}, OperationName()));
  group_ = std::make_unique<Group>();
  group_->thread = std::this_thread::get_id();
  group_->work = MakeRef<DeferredWork>(group_->thread);
  return absl::OkStatus();
}

absl::StatusOr<Work> DeviceCommunicator::Collect(const DeviceCall& call) {
  if (absl::Status wrong = Check(call); !wrong.ok()) {
    group_->refused.Update(wrong);
    return wrong;
  }
  return Work(group_->members.emplace_back(call, group_->thread).work);
}

absl::StatusOr<Work> DeviceCommunicator::EndGroup() {
  std::unique_ptr<Group> group;
  {
    MutexLock lock(&group_mu_);
    if (!Collecting()) return absl::FailedPreconditionError("this thread has no group open on this communicator");
    if (--group_->depth > 0) return Work(group_->work);
    group = std::move(group_);
  }
  if (absl::Status launched = LaunchGroup(group.get()); !launched.ok()) {
    const absl::Status dropped = Reworded(launched, absl::StatusCode::kCancelled,
                                          absl::StrCat("the group was not launched: ", launched.message()));
    for (Group::Member& member : group->members) member.work->Finish(dropped);
    group->work->Finish(dropped);
    return launched;
  }
  return Work(group->work);
}

absl::Status DeviceCommunicator::LaunchGroup(Group* group) {
  absl::Status error = group->refused;
  const absl::Status failure = failure_->status();
  if (!failure.ok()) error.Update(NotStarted(failure, {"a group", {}}, OperationName()));
  std::vector<Work> works;
  if (group->on_host) {
    if (!error.ok()) {
      // The host communicator refuses this, and with it its part of the group.
      CollectiveRequest elsewhere;
      elsewhere.device = device_->id();
      host_->Start(elsewhere).IgnoreError();
    }
    absl::StatusOr<Work> work = host_->EndGroup();
    error.Update(work.status());
    if (error.ok()) works.push_back(*std::move(work));
  }
  LOCKSTEP_RETURN_IF_ERROR(error);
  if (!group->members.empty()) {
    std::vector<DeviceCall> calls;
    for (const Group::Member& member : group->members) calls.push_back(member.call.call());
    absl::StatusOr<Work> work = Launch(calls);
    // The calls on the host are under way, and the other ranks wait for these.
    if (!work.ok() && group->on_host) Fail(work.status());
    LOCKSTEP_RETURN_IF_ERROR(work);
    for (Group::Member& member : group->members) member.work->Become({*work});
    works.push_back(*std::move(work));
  }
  if (works.empty()) {
    group->work->Finish(absl::OkStatus());
  } else {
    group->work->Become(std::move(works));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
