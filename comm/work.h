// Completion handle of one asynchronous collective.
//
// Thread-safe. The buffers given to the collective stay borrowed until done() is true. It becomes true on success, on error and
// on abort alike, so a waiter never hangs. What the collective wrote is visible to any thread that has seen done() return
// true, and to callbacks given to OnComplete.

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

// Shared by the handle and by whoever completes it. Either may be destroyed first.
class WorkState : public RefCounted {
 public:
  WorkState() = default;
  virtual ~WorkState();

  // To be called once. The release store pairs with the acquire load of whoever sees done(). It is the last access: a waiter may
  // free a state that no Ref holds as soon as it sees it done.
  void Complete(absl::Status status) {
    status_ = std::move(status);
    // Without a Ref there was no handle to add a callback by.
    Callback* const callbacks = held() ? callbacks_.exchange(Closed(), std::memory_order_acq_rel) : nullptr;
    if (callbacks != nullptr) return CompleteWith(callbacks);
    done_.store(true, std::memory_order_release);
  }
  const std::atomic<bool>& done() const { return done_; }
  const absl::Status& status() const { return status_; }  // only once done

  // Waits until done or the deadline; drives progress where there is something to drive.
  virtual void Await(Deadline deadline) = 0;

  // For operations that nobody watches: completes this if the operation is done. Never blocks.
  virtual void Poll() {}
  // When to Poll() next if nobody waits. Infinite: it is completed without Poll().
  virtual Deadline next_poll() const { return Deadline::Infinite(); }

  // Of a receive; set before completion.
  const MessageInfo& message() const { return message_; }
  void set_message(const MessageInfo& message) { message_ = message; }

  // Whether this belongs to a group that is still open on this thread. Relaxed: a thread asks only about its own group.
  bool collected() const { return collector_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // The thread that has the group open; the default id once the group has ended.
  void set_collector(std::thread::id thread) { collector_.store(thread, std::memory_order_relaxed); }

 protected:
  // Prepares this for another operation. Nobody may be waiting.
  void Reset() {
    status_ = absl::OkStatus();
    callbacks_.store(nullptr, std::memory_order_relaxed);
    done_.store(false, std::memory_order_relaxed);
  }

 private:
  friend class Work;
  friend class CallbackThread;
  struct Callback;

  // The value of callbacks_ once no more are accepted.
  static Callback* Closed() { return reinterpret_cast<Callback*>(uintptr_t{1}); }
  // False when the state is being completed or is done. The caller then still owns the callback.
  bool Add(Callback* callback);
  void CompleteWith(Callback* callbacks);

  std::atomic<bool> done_{false};
  absl::Status status_;
  // The last one registered; a list back to the first. Whoever completes takes it, with acquire.
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

  // Waits until the operation is done.
  // RETURNS  its result
  // ERRORS   DEADLINE_EXCEEDED    it was not done by the deadline; it goes on
  //          FAILED_PRECONDITION  it belongs to a group that is still open on this thread
  absl::Status Wait(Deadline deadline);

  // Calls `callback` once with the collective's result when it is done: on success, on error and on abort, whether anybody waits
  // or not. Several callbacks of one work are called in the order in which they were given.
  // THREADS  the calling thread, at once, if the work is done already. Otherwise the thread lockstep-done, outside our locks,
  //          shortly after done() turns true. The callback may start operations and destroy handles, this one included, and the
  //          communicator. It may not wait for operations, and should be short: all callbacks of the process take turns.
  // ERRORS   throws std::system_error when lockstep-done cannot be started, and drops the callback
  void OnComplete(CompletionCallback callback) const;

  // Of a receive that succeeded.
  const MessageInfo& message() const { return state_->message(); }

  bool collected() const { return state_->collected(); }

 private:
  Ref<WorkState> state_;
};

}  // namespace lockstep

#endif  // COMM_WORK_H_
