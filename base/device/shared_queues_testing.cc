#include "base/device/shared_queues_testing.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/device/host_device.h"
#include "base/poll.h"
#include "base/status.h"

namespace lockstep {
namespace {

// Of one stream. Shared by the stream and by what the queue has yet to do for it.
class State {
 public:
  bool gone() const { return gone_.load(std::memory_order_acquire); }
  void Leave() { gone_.store(true, std::memory_order_release); }
  bool Works() const { return !gone() && status().ok(); }

  absl::Status status() const {
    MutexLock lock(&mu_);
    return status_;
  }
  void Update(const absl::Status& status) {
    MutexLock lock(&mu_);
    status_.Update(status);
  }

 private:
  std::atomic<bool> gone_{false};  // released by the stream's end, acquired by the queue's thread
  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

class SharingStream final : public Stream {
 public:
  SharingStream(Stream* queue, Mutex* closures_mu)
      : queue_(queue), closures_mu_(closures_mu), end_(HostDevice()->CreateEvent().value()) {}
  ~SharingStream() override {
    // The closure that runs, if any does, is finished then.
    MutexLock lock(closures_mu_);
    state_->Leave();
  }

  DeviceId device() const override { return DeviceId(); }

  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override {
    if (work == nullptr) return absl::InvalidArgumentError("null work");
    return Issue([state = state_, mu = closures_mu_, work = std::move(work)]() mutable {
      MutexLock lock(mu);
      if (state->Works()) state->Update(work());
    });
  }
  absl::Status Copy(void* target, const void* source, size_t bytes) override {
    return Issue([state = state_, target, source, bytes] {
      if (bytes > 0 && state->Works()) std::memcpy(target, source, bytes);
    });
  }
  absl::Status Record(Event* event) override { return queue_->Record(event); }
  absl::Status Wait(Event* event) override {
    LOCKSTEP_RETURN_IF_ERROR(queue_->Wait(event));
    return queue_->Record(end_.get());
  }
  absl::Status AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) override {
    if (flag == nullptr) return absl::InvalidArgumentError("null flag");
    return Issue([state = state_, flag, value] {
      PollUntil(Deadline::Infinite(),
                [&] { return state->gone() || HasComeTo(flag->load(std::memory_order_acquire), value); });
    });
  }
  absl::Status WriteValue(std::atomic<uint32_t>* flag, uint32_t value) override {
    if (flag == nullptr) return absl::InvalidArgumentError("null flag");
    return Issue([state = state_, flag, value] {
      if (!state->gone()) flag->store(value, std::memory_order_release);
    });
  }
  absl::Status Synchronize(Deadline deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(end_->Synchronize(deadline));
    return status();
  }
  absl::Status status() const override { return state_->status(); }

 private:
  template <typename Work>
  absl::Status Issue(Work work) {
    LOCKSTEP_RETURN_IF_ERROR(queue_->Enqueue([work = std::move(work)]() mutable {
      work();
      return absl::OkStatus();
    }));
    return queue_->Record(end_.get());
  }

  Stream* const queue_;
  Mutex* const closures_mu_;
  const std::unique_ptr<Event> end_;  // behind what was issued last
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

SharedQueues::SharedQueues(int queues) {
  LOCKSTEP_CHECK(queues >= 1);
  for (int i = 0; i < queues; ++i) {
    queues_.push_back(HostDevice()->CreateStream(absl::StrCat("queue ", i)).value());
  }
}

SharedQueues::~SharedQueues() = default;

std::unique_ptr<Stream> SharedQueues::NewStream() {
  MutexLock lock(&mu_);
  return std::make_unique<SharingStream>(queues_[next_++ % queues_.size()].get(), &closures_mu_);
}

}  // namespace lockstep
