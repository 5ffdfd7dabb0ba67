#include "reducer/pipeline/comm_hook.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device_memory.h"
#include "base/device/host_device.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

// How soon the end of a communicator is noticed.
constexpr int kEndNoticedMs = 100;

// The status of the reducer's communicator, or else of the hook's, which ends if the hook of another rank fails.
absl::Status StatusOf(const HookBucket& bucket) {
  if (bucket.reducers != nullptr) LOCKSTEP_RETURN_IF_ERROR(bucket.reducers->status());
  return bucket.communicator == nullptr ? absl::OkStatus() : bucket.communicator->status();
}

class NoopHook : public CommHook {
 public:
  std::string name() const override { return "noop"; }
  bool communicates() const override { return false; }
  absl::Status Issue(HookBucket&, Stream&) override { return absl::OkStatus(); }
};

class Completion : public HookCompletion {
 public:
  void Done(const absl::Status& status) override {
    MutexLock lock(&mu_);
    if (done_) return;
    done_ = true;
    status_ = status;
    changed_.SignalAll();
  }

  // Waits until Done, the deadline or the end of one of the bucket's communicators, which are polled.
  absl::Status Wait(Deadline deadline, const HookBucket& bucket) {
    MutexLock lock(&mu_);
    while (!done_) {
      if (changed_.WaitUntil(&mu_, Deadline::Earlier(deadline, Deadline::AfterMs(kEndNoticedMs))) || done_) continue;
      absl::Status over = StatusOf(bucket);
      if (deadline.passed()) over.Update(absl::DeadlineExceededError("it did not complete in time"));
      if (over.ok()) continue;
      done_ = true;
      return over;
    }
    return status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

class HostCompletedHook : public CommHook {
 public:
  HostCompletedHook(std::string name, std::chrono::milliseconds timeout,
                    std::function<void(HookBucket&, std::shared_ptr<HookCompletion>)> start)
      : name_(std::move(name)), timeout_(timeout), start_(std::move(start)) {}

  std::string name() const override { return name_; }

  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    if (stream.device().kind != DeviceKind::kHost) return IssueOnDevice(bucket, stream);
    return stream.Enqueue([this, &bucket] {
      bucket.status = Carry(bucket);
      return absl::OkStatus();
    });
  }

 private:
  using Word = std::atomic<uint32_t>;

  // Until it is completed, late or at an end with a communicator.
  absl::Status Carry(HookBucket& bucket) {
    LOCKSTEP_RETURN_IF_ERROR(StatusOf(bucket));
    const auto completion = std::make_shared<Completion>();
    start_(bucket, completion);
    return completion->Wait(Deadline::After(timeout_), bucket);
  }

  // The stream's own closures may not use the device, nor hold up those of other streams: a thread of ours carries the
  // hook out, and the stream awaits a word that it stores then.
  absl::Status IssueOnDevice(HookBucket& bucket, Stream& stream) {
    LOCKSTEP_RETURN_IF_ERROR(bucket.communicator->status());  // of an earlier bucket's hook
    Device* const device = bucket.communicator->accelerator();
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Event> there, device->CreateEvent());
    LOCKSTEP_RETURN_IF_ERROR(stream.Record(there.get()));
    MutexLock lock(&mu_);
    if (thread_ == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(done_, DeviceMemory::AllocateOnHost(device, sizeof(Word)));
      new (done_.data()) Word(0);
      LOCKSTEP_ASSIGN_OR_RETURN(thread_, HostDevice()->CreateStream("lockstep-hook"));
    }
    Word* const done = reinterpret_cast<Word*>(done_.data());
    const uint32_t number = ++issued_;
    LOCKSTEP_RETURN_IF_ERROR(thread_->Enqueue([this, &bucket, there, done, number] {
      // What is before it ends by deadlines of its own.
      absl::Status status = there->Synchronize(Deadline::Infinite());
      if (status.ok()) status = Carry(bucket);
      if (!status.ok()) bucket.fail(status);
      done->store(number, std::memory_order_release);
      return absl::OkStatus();
    }));
    return stream.AwaitValue(done, number);
  }

  const std::string name_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(HookBucket&, std::shared_ptr<HookCompletion>)> start_;
  // Where buckets are on a device: made for the first one.
  Mutex mu_;
  DeviceMemory done_ ABSL_GUARDED_BY(mu_);               // a word: the number of the last hook that is
  std::unique_ptr<Stream> thread_ ABSL_GUARDED_BY(mu_);  // goes before the word
  uint32_t issued_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

std::unique_ptr<CommHook> MakeNoopHook() { return std::make_unique<NoopHook>(); }

std::unique_ptr<CommHook> MakeHostCompletedHook(
    std::string name, std::chrono::milliseconds timeout,
    std::function<void(HookBucket& bucket, std::shared_ptr<HookCompletion> completion)> start) {
  return std::make_unique<HostCompletedHook>(std::move(name), timeout, std::move(start));
}

}  // namespace lockstep
