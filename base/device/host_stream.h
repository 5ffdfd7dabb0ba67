// A host stream and its events; internal to the host device.
//
// A stream counts the entries of its queue, so a point in its order is a number. An event is a point and a reference to the
// stream's progress: recording enqueues nothing and allocates nothing.

#ifndef BASE_DEVICE_HOST_STREAM_H_
#define BASE_DEVICE_HOST_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lockstep {
namespace internal {

// How many entries of a stream's queue are done. The stream advances it, any thread may wait. Thread-safe.
class StreamProgress {
 public:
  // Acquires what the work up to the point wrote.
  bool Reached(uint64_t point) const { return done_.load(std::memory_order_acquire) >= point; }
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  // How many entries lie between here and the point.
  uint64_t Missing(uint64_t point) const {
    const uint64_t now = done();
    return now < point ? point - now : 0;
  }

  // Called by the stream only, with growing points.
  void Advance(uint64_t point);
  // Every point counts as reached from now on: the stream is gone.
  void End() { Advance(kEnd); }

  // Waits for the point, the deadline or *cancelled (may be null; call WakeWaiters() after setting it). Returns whether the
  // point is reached.
  bool Await(uint64_t point, Deadline deadline, const std::atomic<bool>* cancelled);
  void WakeWaiters();

 private:
  static constexpr uint64_t kEnd = UINT64_MAX;
  static constexpr uint64_t kNobody = UINT64_MAX;

  // A Dekker pair, sequentially consistent: Advance stores done_ and then loads awaited_, a waiter stores awaited_ and then
  // loads done_. At least one of them sees the other.
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> awaited_{kNobody};  // no waiter waits for less; written with mu_ held

  Mutex mu_;
  CondVar advanced_;
};

struct StreamPoint {
  // Shared by the stream, the events recorded in it and the streams that wait for those: any of them may go first.
  std::shared_ptr<StreamProgress> progress;  // null: a point that was reached before all
  uint64_t number = 0;

  bool Reached() const { return progress == nullptr || progress->Reached(number); }
};

class HostEvent final : public Event {
 public:
  HostEvent();
  ~HostEvent() override;

  bool Query() const override;
  absl::Status Synchronize(Deadline deadline) override;

  StreamPoint point() const;
  void set_point(StreamPoint point);

 private:
  bool forked() const;

  const uint64_t fork_generation_;

  mutable Mutex mu_;
  StreamPoint point_ ABSL_GUARDED_BY(mu_);
};

// The queue and the thread that executes it.
class HostQueue {
 public:
  explicit HostQueue(const std::string& name);
  // Lets the running closure finish, drops the rest, and completes every point.
  ~HostQueue();

  absl::Status Push(absl::AnyInvocable<absl::Status()> work);
  absl::Status PushWait(StreamPoint point);
  // Stream::AwaitValue and Stream::WriteValue.
  absl::Status PushAwait(const std::atomic<uint32_t>* flag, uint32_t value);
  absl::Status PushWrite(std::atomic<uint32_t>* flag, uint32_t value);
  StreamPoint End() const;
  absl::Status Synchronize(Deadline deadline);
  absl::Status error() const;

 private:
  // Runs `work`, or waits for `point` where there is no work.
  struct Entry {
    absl::AnyInvocable<absl::Status()> work;
    StreamPoint point;
    bool after_errors = false;  // run the work after an error of the stream, too
  };

  absl::Status Push(Entry entry);
  absl::Status StartWorker() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The worker's.
  void Run();
  void Execute(Entry* entry);
  void RunWork(absl::AnyInvocable<absl::Status()>* work);
  void AwaitPoint(const StreamPoint& point);
  void AwaitFlag(const std::atomic<uint32_t>& flag, uint32_t value) const;

  // Constant after construction.
  const std::string name_;
  const std::shared_ptr<StreamProgress> progress_;

  std::atomic<bool> stopping_{false};  // written with mu_ held
  std::atomic<bool> failed_{
      false};  // released after error_ is written: an acquirer may skip the lock while it is false

  mutable Mutex mu_;
  CondVar work_arrived_;
  std::vector<Entry> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  bool worker_sleeps_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<StreamProgress> worker_waits_for_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  Thread worker_ ABSL_GUARDED_BY(mu_);
};

class HostStream final : public Stream {
 public:
  explicit HostStream(const std::string& name);
  ~HostStream() override;

  DeviceId device() const override { return DeviceId(); }
  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override;
  absl::Status Copy(void* target, const void* source, size_t bytes) override;
  absl::Status Record(Event* event) override;
  absl::Status Wait(Event* event) override;
  absl::Status AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) override;
  absl::Status WriteValue(std::atomic<uint32_t>* flag, uint32_t value) override;
  absl::Status Synchronize(Deadline deadline) override;
  absl::Status status() const override;

 private:
  // FAILED_PRECONDITION in a forked child, where the thread does not exist.
  absl::Status CheckUsable() const;

  const std::string name_;
  const uint64_t fork_generation_;
  std::unique_ptr<HostQueue> queue_;
};

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_HOST_STREAM_H_
