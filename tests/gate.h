// A gate that a test opens once, and that work in a stream or a thread waits at.

#ifndef TESTS_GATE_H_
#define TESTS_GATE_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/mutex.h"

namespace lockstep {

// Thread-safe.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    opened_.SignalAll();
  }

  absl::Status Await(Deadline deadline) {
    MutexLock lock(&mu_);
    while (!open_) {
      if (!opened_.WaitUntil(&mu_, deadline)) return absl::DeadlineExceededError("the test did not open its gate");
    }
    return absl::OkStatus();
  }

 private:
  Mutex mu_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lockstep

#endif  // TESTS_GATE_H_
