#include "comm/work.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lockstep {

struct WorkState::Callback {
  CompletionCallback call;
  absl::Status status;  // once it is ready to be called
  // Until then the one registered before it, and from then on the one to be called after it.
  Callback* next = nullptr;
};

// Calls callbacks, and looks after the works that have some and that nobody else completes.
//
// One for the process, thread-safe. Its thread, lockstep-done, is started with the first callback that has to wait for its work,
// and ends when for a second there was none.
class CallbackThread {
 public:
  using Callback = WorkState::Callback;

  // The process's. Never destroyed.
  static CallbackThread* Get();

  // A callback will be ready some time: the thread stays until then.
  void Expect() ABSL_LOCKS_EXCLUDED(mu_);
  void DoNotExpect() ABSL_LOCKS_EXCLUDED(mu_);
  // Polls the state until it is done.
  void Watch(Ref<WorkState> state) ABSL_LOCKS_EXCLUDED(mu_);
  // Expected before; owned from now on, with those that it leads to. Called with locks of communicators held: allocates nothing.
  void Ready(Callback* first) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Watched {
    Ref<WorkState> state;
    Deadline next_poll;
  };

  // Leaves what was the parent's before a fork as it is: nobody there holds its lock, or ever gives it back.
  CallbackThread() : fork_generation_(ForkGeneration()) {}

  void Main() ABSL_LOCKS_EXCLUDED(mu_);
  void CallFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PollWatched() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t fork_generation_;

  Mutex mu_;
  CondVar changed_;
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  int expected_ ABSL_GUARDED_BY(mu_) = 0;  // registered and not called yet
  Callback* first_ready_ ABSL_GUARDED_BY(mu_) = nullptr;
  Callback** end_of_ready_ ABSL_GUARDED_BY(mu_) = &first_ready_;
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mu_);
  Deadline next_poll_ ABSL_GUARDED_BY(mu_) = Deadline::Infinite();  // the earliest
};

namespace {

// How long the thread stays when no callback is expected.
constexpr std::chrono::seconds kLinger{1};

}  // namespace

// ---- WorkState

WorkState::~WorkState() {
  // Only what is never completed, as in a forked child, has any left.
  Callback* callback = callbacks_.load(std::memory_order_acquire);
  while (callback != nullptr && callback != Closed()) {
    const std::unique_ptr<Callback> owned(callback);
    callback = callback->next;
  }
}

bool WorkState::Add(Callback* callback) {
  callback->next = callbacks_.load(std::memory_order_acquire);
  do {
    if (callback->next == Closed()) return false;
  } while (!callbacks_.compare_exchange_weak(callback->next, callback, std::memory_order_acq_rel));
  return true;
}

void WorkState::CompleteWith(Callback* callbacks) {
  Callback* first = nullptr;
  while (callbacks != nullptr) {
    Callback* const last = callbacks;
    callbacks = last->next;
    last->status = status_;
    last->next = first;
    first = last;
  }
  done_.store(true, std::memory_order_release);
  CallbackThread::Get()->Ready(first);
}

// ---- Work

absl::Status Work::Wait(Deadline deadline) {
  if (!done()) {
    if (collected()) {
      return absl::FailedPreconditionError(
          "this waits for a call of a group that is still open on this thread: end the group first");
    }
    state_->Await(deadline);
  }
  if (!done()) {
    return absl::DeadlineExceededError("the collective is not done yet; it goes on, and its buffers stay borrowed");
  }
  return state_->status();
}

void Work::OnComplete(CompletionCallback callback) const {
  // The callback may destroy this handle, on another thread before this returns.
  const Ref<WorkState> state = state_;
  if (!done()) {
    auto waiting = std::make_unique<WorkState::Callback>();
    waiting->call = std::move(callback);
    CallbackThread* const thread = CallbackThread::Get();
    thread->Expect();
    if (state->Add(waiting.get())) {
      waiting.release();  // the state's
      if (!state->next_poll().infinite()) thread->Watch(state);
      return;
    }
    thread->DoNotExpect();
    callback = std::move(waiting->call);
    // Whoever completes it is between two instructions.
    while (!state->done().load(std::memory_order_acquire)) std::this_thread::yield();
  }
  callback(state->status());
}

// ---- CallbackThread

CallbackThread* CallbackThread::Get() {
  static std::atomic<CallbackThread*> current{nullptr};
  CallbackThread* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->fork_generation_ != ForkGeneration()) {
    std::unique_ptr<CallbackThread> made(new CallbackThread);
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) return made.release();
  }
  return found;
}

void CallbackThread::Expect() {
  MutexLock lock(&mu_);
  if (!running_) Thread("lockstep-done", [this] { Main(); }).Detach();
  running_ = true;
  ++expected_;
}

void CallbackThread::DoNotExpect() {
  MutexLock lock(&mu_);
  --expected_;
}

void CallbackThread::Watch(Ref<WorkState> state) {
  if (state->done().load(std::memory_order_acquire)) return;
  const Deadline next_poll = state->next_poll();
  MutexLock lock(&mu_);
  watched_.push_back({std::move(state), next_poll});
  next_poll_ = Deadline::Earlier(next_poll_, next_poll);
  changed_.SignalAll();
}

void CallbackThread::Ready(Callback* first) {
  MutexLock lock(&mu_);
  *end_of_ready_ = first;
  while (*end_of_ready_ != nullptr) end_of_ready_ = &(*end_of_ready_)->next;
  // If it is polled, its state goes first: the callback may be what the end of its device waits for.
  if (!watched_.empty()) next_poll_ = Deadline::Now();
  changed_.SignalAll();
}

void CallbackThread::CallFirst() {
  std::unique_ptr<Callback> callback(first_ready_);
  first_ready_ = callback->next;
  if (first_ready_ == nullptr) end_of_ready_ = &first_ready_;
  mu_.Unlock();
  callback->call(callback->status);
  callback = nullptr;
  mu_.Lock();
  --expected_;
}

void CallbackThread::PollWatched() {
  std::vector<Watched> watched = std::move(watched_);
  watched_.clear();
  next_poll_ = Deadline::Infinite();
  mu_.Unlock();
  {
    const CudaRelaxedCapture relaxed(TheCudaApi());
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    for (Watched& one : watched) {
      if (!one.next_poll.passed(now)) continue;
      one.state->Poll();
      one.next_poll = one.state->next_poll();
    }
    watched.erase(std::remove_if(watched.begin(), watched.end(),
                                 [](const Watched& one) { return one.state->done().load(std::memory_order_acquire); }),
                  watched.end());
  }
  mu_.Lock();
  for (Watched& one : watched) watched_.push_back(std::move(one));
  for (const Watched& one : watched_) next_poll_ = Deadline::Earlier(next_poll_, one.next_poll);
}

void CallbackThread::Main() {
  MutexLock lock(&mu_);
  Deadline end = Deadline::Infinite();
  for (;;) {
    if (expected_ > 0) end = Deadline::Infinite();
    if (next_poll_.passed()) {
      PollWatched();
    } else if (first_ready_ != nullptr) {
      CallFirst();
    } else if (expected_ > 0 || !watched_.empty()) {
      changed_.WaitUntil(&mu_, next_poll_);
    } else if (end.infinite()) {
      end = Deadline::After(kLinger);
    } else if (!end.passed()) {
      changed_.WaitUntil(&mu_, end);
    } else {
      running_ = false;
      return;
    }
  }
}

}  // namespace lockstep
