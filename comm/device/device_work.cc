#include "comm/device/device_work.h"

#include "absl/strings/str_cat.h"
#include "comm/record/operation_error.h"

namespace lockstep {
namespace {

// How often a waiter looks whether the communicator has failed or is gone.
constexpr int64_t kLookMs = 20;
// A device that has not come to an event this long after the communicator failed hangs.
constexpr std::chrono::seconds kHangs{10};

}  // namespace

void DeviceFailure::Set(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!status_.ok() || status.ok()) return;
  status_ = status;
  since_ = Deadline::After(std::chrono::nanoseconds::zero());
  failed_.store(true, std::memory_order_release);
}

absl::Status DeviceFailure::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&mu_);
  return status_;
}

Deadline DeviceFailure::since() const {
  if (!failed_.load(std::memory_order_acquire)) return Deadline::Infinite();
  MutexLock lock(&mu_);
  return since_;
}

std::string IssuedCalls::Name() const {
  return absl::StrCat(signature.sequence > 0 ? ToString(signature) : ToString(message),
                      more == 0 ? "" : absl::StrCat(" and ", more, " more of its group"));
}

absl::Status IssuedCalls::Error(const absl::Status& cause) const {
  return OperationError(cause, signature.sequence > 0 ? NameOf(signature) : NameOf(message),
                        more == 0 ? "" : absl::StrCat("and ", more, " more of its group"));
}

bool EventWork::GivenUp() const {
  const Deadline since = failure_->since();
  return failure_->closed() || (!since.infinite() && Deadline::Clock::now() - since.time() >= kHangs);
}

void EventWork::Poll() {
  if (event_->Query()) {
    // An event that will never be reached, because the device is lost, counts as reached; this tells.
    Reached(event_->Synchronize(Deadline::Now()));
  } else if (GivenUp()) {
    Finish(failure_->status());
  }
}

void EventWork::Reached(const absl::Status& reached) {
  const absl::Status failure = failure_->status();
  Finish(failure.ok() ? reached : failure);
}

void EventWork::Await(Deadline deadline) {
  while (!done().load(std::memory_order_acquire)) {
    const absl::Status reached = event_->Synchronize(Deadline::Earlier(deadline, Deadline::AfterMs(kLookMs)));
    if (!absl::IsDeadlineExceeded(reached)) {
      Reached(reached);
    } else if (GivenUp()) {
      Finish(failure_->status());
    } else if (deadline.passed()) {
      break;
    }
  }
}

// Here and in DeferredWork, done() is loaded relaxed where mu_ is held: so does each thread that completes the work.
void EventWork::Finish(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (!done().load(std::memory_order_relaxed)) Complete(status.ok() ? status : calls_.Error(status));
}

void DeferredWork::Become(std::vector<Work> works) {
  set_collector({});
  {
    MutexLock lock(&mu_);
    works_ = std::move(works);
  }
  launched_.SignalAll();
}

void DeferredWork::Finish(const absl::Status& status) {
  set_collector({});
  {
    MutexLock lock(&mu_);
    if (!done().load(std::memory_order_relaxed)) Complete(status);
  }
  launched_.SignalAll();
}

std::vector<Work> DeferredWork::works() const {
  MutexLock lock(&mu_);
  return works_;
}

void DeferredWork::Poll() {
  std::vector<Work> works = this->works();
  absl::Status first_error;
  for (Work& work : works) {
    if (!work.done()) return;
    first_error.Update(work.Wait(Deadline::Now()));
  }
  if (!works.empty()) Finish(first_error);
}

void DeferredWork::Await(Deadline deadline) {
  {
    MutexLock lock(&mu_);
    while (works_.empty() && !done().load(std::memory_order_relaxed)) {
      if (!launched_.WaitUntil(&mu_, deadline)) return;
    }
  }
  // What each says is asked again, once all are done.
  for (Work& work : works()) work.Wait(deadline).IgnoreError();
  Poll();
}

}  // namespace lockstep
