// Completion handle of one asynchronous collective.
//
// Thread-safe. The buffers given to the collective stay borrowed until done() is true; it becomes true on success, on error and
// on abort alike, so a waiter never hangs. What the collective wrote is visible to any thread that has seen done() return
// true.

#ifndef COMM_WORK_H_
#define COMM_WORK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/ref.h"

namespace lockstep {

// What a receive got.
struct MessageInfo {
  Rank source;
  int64_t tag = 0;
  size_t bytes = 0;
};

// Shared by the handle and by whoever completes it: either may go first.
class WorkState : public RefCounted {
 public:
  WorkState() = default;
  virtual ~WorkState() = default;

  // Once. The release store pairs with the acquire load of whoever sees done().
  void Complete(absl::Status status) {
    status_ = std::move(status);
    done_.store(true, std::memory_order_release);
  }
  const std::atomic<bool>& done() const { return done_; }
  const absl::Status& status() const { return status_; }  // only once done

  // Waits until done or the deadline; drives progress where there is something to drive. An error when waiting cannot
  // help: the operation has not begun, and this thread would have to begin it.
  virtual absl::Status Await(Deadline deadline) = 0;

  // Looks whether it is done, and completes it then: where nobody does so until asked. Never blocks.
  virtual void Poll() {}

  // Of a receive, set before it is completed.
  const MessageInfo& message() const { return message_; }
  void set_message(const MessageInfo& message) { message_ = message; }

  // In a group that is still open on this thread.
  virtual bool collected() const { return false; }

 protected:
  // For the next operation. Nobody may be waiting.
  void Reset() {
    status_ = absl::OkStatus();
    done_.store(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> done_{false};
  absl::Status status_;
  MessageInfo message_;
};

class Work {
 public:
  explicit Work(Ref<WorkState> state) : state_(std::move(state)) {}

  bool done() const {
    if (state_->done().load(std::memory_order_acquire)) return true;
    state_->Poll();
    return state_->done().load(std::memory_order_acquire);
  }

  // The collective's result once it is done. DEADLINE_EXCEEDED when it is not by then: only the waiting is over, the operation
  // goes on. FAILED_PRECONDITION inside the open group that it belongs to.
  absl::Status Wait(Deadline deadline);

  // Of a receive that is done well.
  const MessageInfo& message() const { return state_->message(); }

  bool collected() const { return state_->collected(); }

 private:
  Ref<WorkState> state_;
};

}  // namespace lockstep

#endif  // COMM_WORK_H_
