// A mutex and a condition variable that clang's thread-safety analysis understands and ThreadSanitizer sees through.
//
// Thin wrappers over std::mutex: Debian's prebuilt absl::Mutex is not instrumented, so ThreadSanitizer reports false
// races on it. Every wait takes a Deadline.

#ifndef BASE_MUTEX_H_
#define BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"

namespace lockstep {

class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Wait with the condition in a loop, as ever:
//
//   MutexLock lock(&mu_);
//   while (!ready_) {
//     if (!changed_.WaitUntil(&mu_, deadline)) return absl::DeadlineExceededError(...);
//   }
class CondVar {
 public:
  CondVar() : condition_() {}
  // std::condition_variable's destructor waits until every waiter has left. In a forked child waiters of the parent
  // never do, and an object that the child destroys would hang it. There is nothing else to release, so it is not
  // called: whoever destroys a CondVar knows that its waiters have returned.
  ~CondVar() {}
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // False once the deadline has passed; true after a signal or a spurious wake-up.
  bool WaitUntil(Mutex* mutex, Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool signalled = deadline.infinite()
                               ? (condition_.wait(lock), true)
                               : condition_.wait_until(lock, deadline.time()) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }

  void SignalOne() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  union {
    std::condition_variable condition_;
  };
};

}  // namespace lockstep

#endif  // BASE_MUTEX_H_
