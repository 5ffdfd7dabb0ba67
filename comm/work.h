// Completion handle of one asynchronous collective.
//
// Thread-safe. The buffers given to the collective stay borrowed until done() is true; it becomes true on success, on error and
// on abort alike, so a waiter never hangs. What the collective wrote is visible to any thread that has seen done() return
// true, and to the functions given to OnComplete.

#ifndef COMM_WORK_H_
#define COMM_WORK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
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

// Gets the operation's result.
using CompletionCallback = absl::AnyInvocable<void(const absl::Status&)>;

// Shared by the handle and by whoever completes it: either may go first.
class WorkState : public RefCounted {
 public:
  WorkState() = default;
  virtual ~WorkState();

  // Once. The release store pairs with the acquire load of whoever sees done(). A waiter may free a state that no Ref holds as
  // soon as it sees it done: it is not touched afterwards.
  void Complete(absl::Status status) {
    status_ = std::move(status);
    // Without a Ref there was no handle by which a callback could have come.
    Callback* const callbacks = held() ? callbacks_.exchange(Closed(), std::memory_order_acq_rel) : nullptr;
    if (callbacks != nullptr) return CompleteWith(callbacks);
    done_.store(true, std::memory_order_release);
  }
  const std::atomic<bool>& done() const { return done_; }
  const absl::Status& status() const { return status_; }  // only once done

  // Waits until done or the deadline; drives progress where there is something to drive.
  virtual void Await(Deadline deadline) = 0;

  // Looks whether it is done, and completes it then: where nobody does so until asked. Never blocks.
  virtual void Poll() {}
  // When to Poll() next if nobody waits; infinite where it is completed without.
  virtual Deadline next_poll() const { return Deadline::Infinite(); }

  // Of a receive, set before it is completed.
  const MessageInfo& message() const { return message_; }
  void set_message(const MessageInfo& message) { message_ = message; }

  // In a group that is still open on this thread. Only that thread asks about its own group, so the order of this and other memory
  // does not matter.
  bool collected() const { return collector_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // The thread that has the group open; none once that has ended.
  void set_collector(std::thread::id thread) { collector_.store(thread, std::memory_order_relaxed); }

 protected:
  // For the next operation. Nobody may be waiting.
  void Reset() {
    status_ = absl::OkStatus();
    callbacks_.store(nullptr, std::memory_order_relaxed);
    done_.store(false, std::memory_order_relaxed);
  }

 private:
  friend class Work;
  friend class CallbackThread;
  struct Callback;

  // Stands in callbacks_ when none is taken any more.
  static Callback* Closed() { return reinterpret_cast<Callback*>(uintptr_t{1}); }
  // False when the state is being completed or is done: the callback is still the caller's.
  bool Add(Callback* callback);
  void CompleteWith(Callback* callbacks);

  std::atomic<bool> done_{false};
  absl::Status status_;
  // The last one registered, which leads to those before. Taken, with acquire, by whoever completes.
  std::atomic<Callback*> callbacks_{nullptr};
  MessageInfo message_;
  std::atomic<std::thread::id> collector_{};
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

  // Calls `callback` once with the collective's result when it is done, whether anybody waits or not: on success, on error and
  // on abort alike. If it is done already, at once, on the calling thread; otherwise on the thread lockstep-done, outside our
  // locks, shortly after done() turns true. One work may be given several; they are called in that order.
  //
  // The callback may start operations and destroy handles, this one included, and the communicator. It may not wait for
  // operations, and should be short: all callbacks of the process take turns. Throws std::system_error when that thread
  // cannot be started; the callback is then dropped.
  void OnComplete(CompletionCallback callback) const;

  // Of a receive that is done well.
  const MessageInfo& message() const { return state_->message(); }

  bool collected() const { return state_->collected(); }

 private:
  Ref<WorkState> state_;
};

}  // namespace lockstep

#endif  // COMM_WORK_H_
