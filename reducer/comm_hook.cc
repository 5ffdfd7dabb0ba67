#include "reducer/comm_hook.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/host_device.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

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

  absl::Status Wait(Deadline deadline) {
    MutexLock lock(&mu_);
    while (!done_) {
      if (changed_.WaitUntil(&mu_, deadline) || done_) continue;
      done_ = true;
      return absl::DeadlineExceededError("it did not complete in time");
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
  // Until it is completed or late.
  absl::Status Carry(HookBucket& bucket) {
    const auto completion = std::make_shared<Completion>();
    start_(bucket, completion);
    return completion->Wait(Deadline::After(timeout_));
  }

  // The stream's own closures may not use the device: one of them waits there for what a thread of ours does.
  absl::Status IssueOnDevice(HookBucket& bucket, Stream& stream) {
    LOCKSTEP_RETURN_IF_ERROR(bucket.communicator->status());  // of an earlier bucket's hook
    LOCKSTEP_ASSIGN_OR_RETURN(Stream* const thread, Thread());
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Event> there, bucket.communicator->accelerator()->CreateEvent());
    LOCKSTEP_RETURN_IF_ERROR(stream.Record(there.get()));
    const auto done = std::make_shared<Completion>();
    LOCKSTEP_RETURN_IF_ERROR(thread->Enqueue([this, &bucket, there, done] {
      // What is before it ends by deadlines of its own.
      absl::Status status = there->Synchronize(Deadline::Infinite());
      if (status.ok()) status = Carry(bucket);
      // Which is what the reducer looks at.
      if (!status.ok()) bucket.communicator->Abort(std::string(status.message()));
      done->Done(status);
      return absl::OkStatus();
    }));
    return stream.Enqueue([done] {
      done->Wait(Deadline::Infinite()).IgnoreError();
      return absl::OkStatus();
    });
  }

  absl::StatusOr<Stream*> Thread() {
    MutexLock lock(&mu_);
    if (thread_ == nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(thread_, HostDevice()->CreateStream("lockstep-hook"));
    }
    return thread_.get();
  }

  const std::string name_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(HookBucket&, std::shared_ptr<HookCompletion>)> start_;
  Mutex mu_;
  std::unique_ptr<Stream> thread_ ABSL_GUARDED_BY(mu_);  // where it is on a device
};

}  // namespace

std::unique_ptr<CommHook> MakeNoopHook() { return std::make_unique<NoopHook>(); }

std::unique_ptr<CommHook> MakeHostCompletedHook(
    std::string name, std::chrono::milliseconds timeout,
    std::function<void(HookBucket& bucket, std::shared_ptr<HookCompletion> completion)> start) {
  return std::make_unique<HostCompletedHook>(std::move(name), timeout, std::move(start));
}

}  // namespace lockstep
