// Works of calls on a device: completed by a point in a stream's order, or a placeholder for works that are made later.

#ifndef COMM_DEVICE_DEVICE_WORK_H_
#define COMM_DEVICE_DEVICE_WORK_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "comm/point_to_point.h"
#include "comm/record/signature.h"
#include "comm/work.h"

namespace lockstep {

// The failure of a communicator's calls on its device. Thread-safe; the first failure stays.
class DeviceFailure {
 public:
  void Set(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // When it was set; infinite before.
  Deadline since() const ABSL_LOCKS_EXCLUDED(mu_);

  // The communicator is destroyed, and its calls do nothing more on the device.
  void Close() { closed_.store(true, std::memory_order_release); }
  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  // Released once status_ is written: whoever acquires false need not take the lock.
  std::atomic<bool> failed_{false};
  // Released after the last access to a call's buffers, acquired before they are given back.
  std::atomic<bool> closed_{false};

  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Deadline since_ ABSL_GUARDED_BY(mu_) = Deadline::Infinite();
};

// When to poll a work again that only its device's event completes.
inline Deadline NextPollOfDevice() { return Deadline::After(std::chrono::microseconds(200)); }

// Calls that are issued together, as their error names them: by the first.
struct IssuedCalls {
  Signature signature;  // of a collective
  MessageCall message;  // if the signature has no number
  size_t more = 0;      // further calls of the group

  std::string Name() const;
  absl::Status Error(const absl::Status& cause) const;
};

// Done when an event is reached, with the failure known by then. Only polling or waiting completes it; a thread polls it only if there
// is a callback.
class EventWork : public WorkState {
 public:
  // `event` was recorded behind the calls. The back end ends them by their deadline. If it has failed and the event is still not
  // reached 10 s later, as on a device that hangs, the work is done with the failure. Errors name `calls`.
  EventWork(std::shared_ptr<DeviceFailure> failure, std::unique_ptr<Event> event, const IssuedCalls& calls)
      : failure_(std::move(failure)), event_(std::move(event)), calls_(calls) {}

  void Await(Deadline deadline) override ABSL_LOCKS_EXCLUDED(mu_);
  void Poll() override ABSL_LOCKS_EXCLUDED(mu_);
  Deadline next_poll() const override { return NextPollOfDevice(); }

 private:
  // The event was reached (OK), or its device is lost.
  void Reached(const absl::Status& reached) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether waiting for the event is useless: the failure was 10 s ago.
  bool GivenUp() const;

  const std::shared_ptr<DeviceFailure> failure_;  // shared with the communicator, which may be gone
  const std::unique_ptr<Event> event_;
  const IssuedCalls calls_;
  Mutex mu_;  // one thread completes
};

// A placeholder for the work of a call whose group is open, or for the group's. When the group is launched it becomes the works of
// what was launched. Thread-safe.
class DeferredWork : public WorkState {
 public:
  explicit DeferredWork(std::thread::id collector) { set_collector(collector); }

  // One of these is called once.
  void Become(std::vector<Work> works) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  void Await(Deadline deadline) override ABSL_LOCKS_EXCLUDED(mu_);
  void Poll() override ABSL_LOCKS_EXCLUDED(mu_);
  Deadline next_poll() const override { return NextPollOfDevice(); }

 private:
  // Empty until the group is launched.
  std::vector<Work> works() const ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;  // one thread completes
  CondVar launched_;
  std::vector<Work> works_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_WORK_H_
