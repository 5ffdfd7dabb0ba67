#include "base/device/host_device.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/poll.h"
#include "base/status.h"
#include "base/thread.h"

namespace lockstep {
namespace {

// A stream counts the entries of its queue, so a point in its order is a number. An event is a point and a reference to the
// stream's progress: recording enqueues nothing and allocates nothing.

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
  void Advance(uint64_t point) {
    done_.store(point, std::memory_order_seq_cst);
    if (awaited_.load(std::memory_order_seq_cst) > point) return;
    {
      MutexLock lock(&mu_);
      // Those who wake too early say again what they wait for.
      awaited_.store(kNobody, std::memory_order_seq_cst);
    }
    advanced_.SignalAll();
  }

  // Every point counts as reached from now on: the stream is gone.
  void End() { Advance(kEnd); }

  // Waits for the point, the deadline or *cancelled (may be null; call WakeWaiters() after setting it). Returns whether the
  // point is reached.
  bool Await(uint64_t point, Deadline deadline, const std::atomic<bool>* cancelled) {
    if (Reached(point)) return true;
    MutexLock lock(&mu_);
    bool waiting = true;
    while (true) {
      // Relaxed: each writer holds mu_, as this thread does.
      if (point < awaited_.load(std::memory_order_relaxed)) awaited_.store(point, std::memory_order_seq_cst);
      if (done_.load(std::memory_order_seq_cst) >= point) return true;
      if (!waiting || (cancelled != nullptr && cancelled->load(std::memory_order_acquire))) return false;
      waiting = advanced_.WaitUntil(&mu_, deadline);
    }
  }

  void WakeWaiters() {
    // Taking the lock waits out a waiter between its look at `cancelled` and its sleep.
    { MutexLock lock(&mu_); }
    advanced_.SignalAll();
  }

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
  std::shared_ptr<StreamProgress> progress;  // null: a point that was always reached
  uint64_t number = 0;

  bool Reached() const { return progress == nullptr || progress->Reached(number); }
};

class HostEvent final : public Event {
 public:
  HostEvent() : fork_generation_(ForkGeneration()) {}
  ~HostEvent() override {
    // Another thread of the parent may have been inside the progress when the process forked: the child leaves it alone.
    if (forked()) new StreamPoint(std::move(point_));
  }

  // In a forked child the stream makes no progress any more, and whoever polls must not do so for ever.
  bool Query() const override {
    if (forked()) return true;
    MutexLock lock(&mu_);
    return point_.Reached();
  }

  absl::Status Synchronize(Deadline deadline) override {
    if (forked()) return absl::FailedPreconditionError("host event: made before fork()");
    const StreamPoint awaited = point();
    if (awaited.Reached() || awaited.progress->Await(awaited.number, deadline, nullptr)) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("host event: ", awaited.progress->Missing(awaited.number),
                                                    " entries of its stream before it are not done"));
  }

  StreamPoint point() const {
    MutexLock lock(&mu_);
    return point_;
  }

  void set_point(StreamPoint point) {
    MutexLock lock(&mu_);
    std::swap(point_, point);
  }

 private:
  bool forked() const { return fork_generation_ != ForkGeneration(); }

  const uint64_t fork_generation_;

  mutable Mutex mu_;
  StreamPoint point_ ABSL_GUARDED_BY(mu_);
};

constexpr uint64_t kQueueBound = 65536;

class HostQueue;
// The queue whose worker this thread is.
thread_local const HostQueue* queue_of_this_thread = nullptr;

// The queue and the thread that executes it.
class HostQueue {
 public:
  explicit HostQueue(const std::string& name) : name_(name), progress_(std::make_shared<StreamProgress>()) {}
  // Lets the running closure finish, drops the rest, and completes every point.
  ~HostQueue() {
    std::shared_ptr<StreamProgress> worker_waits_for;
    Thread worker;
    {
      MutexLock lock(&mu_);
      stopping_.store(true, std::memory_order_release);
      worker_waits_for = worker_waits_for_;
      worker = std::move(worker_);
    }
    work_arrived_.SignalOne();
    if (worker_waits_for != nullptr) worker_waits_for->WakeWaiters();
    worker.Join();
    std::vector<Entry> dropped;
    {
      MutexLock lock(&mu_);
      dropped.swap(queue_);
    }
    // Closures go before the events complete: nobody frees what they refer to under their destructors.
    dropped.clear();
    progress_->End();
  }

  // With `after_errors` it runs after an error of the stream, too.
  absl::Status Push(absl::AnyInvocable<absl::Status()> work, bool after_errors = false) {
    return Push(Entry{std::move(work), {}, after_errors});
  }
  absl::Status PushWait(StreamPoint point) {
    // A point of this very queue lies before anything pushed now.
    if (point.progress == progress_ || point.Reached()) return absl::OkStatus();
    return Push(Entry{nullptr, std::move(point)});
  }

  // Stream::AwaitValue and Stream::WriteValue.
  absl::Status PushAwait(const std::atomic<uint32_t>* flag, uint32_t value) {
    const auto await = [this, flag, value] {
      AwaitFlag(*flag, value);
      return absl::OkStatus();
    };
    return Push(await, /*after_errors=*/true);
  }
  absl::Status PushWrite(std::atomic<uint32_t>* flag, uint32_t value) {
    const auto write = [flag, value] {
      flag->store(value, std::memory_order_release);
      return absl::OkStatus();
    };
    return Push(write, /*after_errors=*/true);
  }
  StreamPoint End() const {
    MutexLock lock(&mu_);
    return {progress_, pushed_};
  }

  absl::Status Synchronize(Deadline deadline) {
    if (queue_of_this_thread == this) {
      return absl::FailedPreconditionError(
          absl::StrCat("host stream \"", name_, "\": synchronized from its own work, which would wait for itself"));
    }
    const StreamPoint end = End();
    if (!progress_->Await(end.number, deadline, nullptr)) {
      return absl::DeadlineExceededError(
          absl::StrCat("host stream \"", name_, "\": ", progress_->Missing(end.number), " entries are not done"));
    }
    return error();
  }

  absl::Status error() const {
    if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(&mu_);
    return error_;
  }

 private:
  // Runs `work`, or waits for `point` where there is no work.
  struct Entry {
    absl::AnyInvocable<absl::Status()> work;
    StreamPoint point;
    bool after_errors = false;  // run the work after an error of the stream, too
  };

  absl::Status Push(Entry entry) {
    bool wake = false;
    {
      MutexLock lock(&mu_);
      if (pushed_ - progress_->done() >= kQueueBound) {
        return absl::ResourceExhaustedError(
            absl::StrCat("host stream \"", name_, "\": its queue is full with ", kQueueBound, " entries"));
      }
      if (!worker_.joinable()) {
        LOCKSTEP_RETURN_IF_ERROR(
            Annotate(worker_.Start(name_, [this] { Run(); }), absl::StrCat("host stream \"", name_, "\"")));
      }
      queue_.push_back(std::move(entry));
      ++pushed_;
      std::swap(wake, worker_sleeps_);
    }
    if (wake) work_arrived_.SignalOne();
    return absl::OkStatus();
  }

  // The worker's.
  void Run() {
    queue_of_this_thread = this;
    std::vector<Entry> batch;
    uint64_t done = 0;
    while (true) {
      {
        MutexLock lock(&mu_);
        while (queue_.empty() && !stopping_.load(std::memory_order_relaxed)) {
          worker_sleeps_ = true;
          work_arrived_.WaitUntil(&mu_, Deadline::Infinite());
        }
        worker_sleeps_ = false;
        // The two vectors take turns, so that a steady state allocates nothing.
        batch.swap(queue_);
      }
      for (Entry& entry : batch) {
        if (stopping_.load(std::memory_order_acquire)) return;
        Execute(&entry);
        // A wait cut short by the end of the stream is not done.
        if (stopping_.load(std::memory_order_acquire)) return;
        progress_->Advance(++done);
      }
      batch.clear();
      if (stopping_.load(std::memory_order_acquire)) return;
    }
  }

  void Execute(Entry* entry) {
    if (entry->work == nullptr) {
      // After an error too: what is recorded behind the wait must not seem reached before what it waits for.
      AwaitPoint(entry->point);
      entry->point = StreamPoint();
      return;
    }
    if (entry->after_errors || !failed_.load(std::memory_order_relaxed)) RunWork(&entry->work);
    // Now, not with the batch: whoever sees the entry done may count on its captures being gone.
    entry->work = nullptr;
  }

  void RunWork(absl::AnyInvocable<absl::Status()>* work) {
    absl::Status status;
    try {
      status = (*work)();
    } catch (const std::exception& exception) {
      // The work may be an embedder's; the thread is ours, and an exception that leaves it ends the process.
      status = absl::InternalError(absl::StrCat("host stream \"", name_, "\": its work threw ", exception.what()));
    }
    if (status.ok()) return;
    MutexLock lock(&mu_);
    error_ = std::move(status);
    failed_.store(true, std::memory_order_release);
  }

  void AwaitPoint(const StreamPoint& point) {
    {
      MutexLock lock(&mu_);
      worker_waits_for_ = point.progress;
    }
    point.progress->Await(point.number, Deadline::Infinite(), &stopping_);
    MutexLock lock(&mu_);
    worker_waits_for_ = nullptr;
  }

  void AwaitFlag(const std::atomic<uint32_t>& flag, uint32_t value) const {
    PollUntil(Deadline::Infinite(), [&] {
      return HasComeTo(flag.load(std::memory_order_acquire), value) || stopping_.load(std::memory_order_acquire);
    });
  }

  // Constant after construction.
  const std::string name_;
  const std::shared_ptr<StreamProgress> progress_;

  std::atomic<bool> stopping_{false};  // written with mu_ held, and relaxed where it is read with mu_ held
  // Released after error_ is written: an acquirer may skip the lock while it is false. The worker, which alone writes it,
  // reads it relaxed.
  std::atomic<bool> failed_{false};

  mutable Mutex mu_;
  CondVar work_arrived_;
  std::vector<Entry> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t pushed_ ABSL_GUARDED_BY(mu_) = 0;
  bool worker_sleeps_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<StreamProgress> worker_waits_for_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  Thread worker_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<HostEvent*> AsHostEvent(Event* event) {
  HostEvent* host_event = dynamic_cast<HostEvent*>(event);
  if (host_event != nullptr) return host_event;
  return absl::InvalidArgumentError(event == nullptr ? "null event"
                                                     : "the event belongs to another device than the host");
}

class HostStream final : public Stream {
 public:
  explicit HostStream(const std::string& name)
      : name_(name), fork_generation_(ForkGeneration()), queue_(std::make_unique<HostQueue>(name)) {}
  ~HostStream() override {
    // In a forked child the queue is as the parent's threads left it, perhaps halfway through a change.
    if (!CheckUsable().ok()) queue_.release();
  }

  DeviceId device() const override { return DeviceId(); }
  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (work == nullptr) return absl::InvalidArgumentError(absl::StrCat("host stream \"", name_, "\": null work"));
    return queue_->Push(std::move(work));
  }

  absl::Status Copy(void* target, const void* source, size_t bytes) override {
    return Enqueue([target, source, bytes] {
      if (bytes > 0) std::memcpy(target, source, bytes);
      return absl::OkStatus();
    });
  }

  absl::Status Record(Event* event) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    LOCKSTEP_ASSIGN_OR_RETURN(HostEvent* const host_event, AsHostEvent(event));
    host_event->set_point(queue_->End());
    return absl::OkStatus();
  }

  absl::Status Wait(Event* event) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    LOCKSTEP_ASSIGN_OR_RETURN(HostEvent* const host_event, AsHostEvent(event));
    return queue_->PushWait(host_event->point());
  }

  absl::Status AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat("host stream \"", name_, "\": null flag"));
    return queue_->PushAwait(flag, value);
  }

  absl::Status WriteValue(std::atomic<uint32_t>* flag, uint32_t value) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat("host stream \"", name_, "\": null flag"));
    return queue_->PushWrite(flag, value);
  }

  absl::Status Synchronize(Deadline deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    return queue_->Synchronize(deadline);
  }

  absl::Status status() const override {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable());
    return queue_->error();
  }

 private:
  // FAILED_PRECONDITION in a forked child, where the thread does not exist.
  absl::Status CheckUsable() const {
    if (fork_generation_ == ForkGeneration()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("host stream \"", name_, "\": made before fork()"));
  }

  const std::string name_;
  const uint64_t fork_generation_;
  std::unique_ptr<HostQueue> queue_;
};

// What Device promises; also the alignment that DLPack asks for, and four cache lines.
constexpr size_t kAlignment = 256;

class Host final : public Device {
 public:
  DeviceId id() const override { return DeviceId(); }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) override {
    return std::make_unique<HostStream>(name);
  }

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return std::make_unique<HostEvent>(); }

  absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void*) override {
    return absl::UnimplementedError("a stream on the host has no handle by which it could be borrowed");
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    void* memory = nullptr;
    size_t rounded = 0;
    if (!__builtin_add_overflow(std::max<size_t>(bytes, 1), kAlignment - 1, &rounded)) {
      memory = std::aligned_alloc(kAlignment, rounded / kAlignment * kAlignment);
    }
    if (memory != nullptr) return memory;
    return absl::ResourceExhaustedError(absl::StrCat("host memory: cannot allocate ", bytes, " bytes"));
  }

  void Free(void* memory) override { std::free(memory); }

  absl::StatusOr<void*> AllocateOnHost(size_t bytes) override { return Allocate(bytes); }
  void FreeOnHost(void* memory) override { Free(memory); }
};

}  // namespace

Device* HostDevice() {
  static Host* const host = new Host;
  return host;
}

}  // namespace lockstep
