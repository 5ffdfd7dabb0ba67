// Works of calls on a device: completed by a point in a stream's order, or standing for a work that is there only
// later.

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

// Why a communicator's calls on its device fail, once they do. Thread-safe; the first failure stays.
class DeviceFailure {
 public:
  void Set(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // When it was set; infinite before.
  Deadline since() const ABSL_LOCKS_EXCLUDED(mu_);

  // The communicator is gone, and with it all that its calls did on the device.
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

// Of what only an event of a device tells.
inline Deadline NextPollOfDevice() { return Deadline::After(std::chrono::microseconds(200)); }

// The first of calls that are issued together, for what their error says.
struct IssuedCalls {
  Signature signature;  // of a collective
  MessageCall message;  // else, where the signature has no number
  size_t more = 0;      // calls of its group

  std::string Name() const;
  absl::Status Error(const absl::Status& cause) const;
};

// Done when an event is reached, with the failure known by then. Whoever polls or waits notices it: no thread does, unless there is
// a callback.
class EventWork : public WorkState {
 public:
  // The event was recorded behind the call. The back end ends the call by its deadline; when it has failed and the
  // event is still not reached 10 s later, as on a device that hangs, the work is done with the failure.
  // `calls` says what an error is of.
  EventWork(std::shared_ptr<DeviceFailure> failure, std::unique_ptr<Event> event, const IssuedCalls& calls)
      : failure_(std::move(failure)), event_(std::move(event)), calls_(calls) {}

  void Await(Deadline deadline) override ABSL_LOCKS_EXCLUDED(mu_);
  void Poll() override ABSL_LOCKS_EXCLUDED(mu_);
  Deadline next_poll() const override { return NextPollOfDevice(); }

 private:
  // The event is, or its device is lost.
  void Reached(const absl::Status& reached) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether it is no use to wait for the event any longer.
  bool GivenUp() const;

  const std::shared_ptr<DeviceFailure> failure_;  // shared with the communicator, which may be gone
  const std::unique_ptr<Event> event_;
  const IssuedCalls calls_;
  Mutex mu_;  // one thread completes
};

// Stands for the work of a call whose group is open, or for the group's: it becomes the works of what the group
// launches. Thread-safe.
class DeferredWork : public WorkState {
 public:
  explicit DeferredWork(std::thread::id collector) { set_collector(collector); }

  // Once, one or the other.
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
