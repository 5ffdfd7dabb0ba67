#include "reducer/comm_hook.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/mutex.h"

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
    return stream.Enqueue([this, &bucket] {
      const auto completion = std::make_shared<Completion>();
      start_(bucket, completion);
      bucket.status = completion->Wait(Deadline::After(timeout_));
      return absl::OkStatus();
    });
  }

 private:
  const std::string name_;
  const std::chrono::milliseconds timeout_;
  const std::function<void(HookBucket&, std::shared_ptr<HookCompletion>)> start_;
};

}  // namespace

std::unique_ptr<CommHook> MakeNoopHook() { return std::make_unique<NoopHook>(); }

std::unique_ptr<CommHook> MakeHostCompletedHook(
    std::string name, std::chrono::milliseconds timeout,
    std::function<void(HookBucket& bucket, std::shared_ptr<HookCompletion> completion)> start) {
  return std::make_unique<HostCompletedHook>(std::move(name), timeout, std::move(start));
}

}  // namespace lockstep
