// Errors of the library as c10d raises them, and waits that end when Python has a signal to handle.
//
// ERRORS  ValueError for what the caller can fix; else DistBackendError, with Lockstep's text.

#ifndef PYTHON_LOCKSTEP_TORCH_CSRC_ERRORS_H_
#define PYTHON_LOCKSTEP_TORCH_CSRC_ERRORS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/lockstep.h"

namespace lockstep_torch {

constexpr int64_t kSliceMs = 100;  // between checks for signals
constexpr int64_t kForeverMs = int64_t{1} << 40;

#define LOCKSTEP_REQUIRE(condition, ...) TORCH_CHECK_VALUE(condition, "lockstep: ", __VA_ARGS__)

struct FreeError {
  void operator()(lockstep_error* error) const { lockstep_error_free(error); }
};
using ErrorPtr = std::unique_ptr<lockstep_error, FreeError>;

// The failed ranks of the last errors, by the error's text: an exception of c10's has no room for a rank, and its text is what reaches
// Python. Thread-safe.
class FailedRanks {
 public:
  static FailedRanks& Of() {
    static FailedRanks* const ranks = new FailedRanks;
    return *ranks;
  }

  void Add(const std::string& message, int32_t rank) {
    const std::lock_guard<std::mutex> lock(mu_);
    last_.emplace_front(message, rank);
    if (last_.size() > kMost) last_.pop_back();
  }

  // Returns the rank that died, stopped answering or differed, for a text that contains the message of an error; else -1.
  int64_t Find(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [message, rank] : last_) {
      if (text.find(message) != std::string::npos) return rank;
    }
    return -1;
  }

 private:
  static constexpr size_t kMost = 64;
  std::mutex mu_;
  // Guarded by mu_. Newest first.
  std::deque<std::pair<std::string, int32_t>> last_;
};

inline std::exception_ptr ToException(const lockstep_error* error) {
  const std::string message = std::string("lockstep: ") + lockstep_error_message(error);
  const lockstep_code code = lockstep_error_code(error);
  if (code == LOCKSTEP_INVALID_ARGUMENT) {
    return std::make_exception_ptr(c10::ValueError({__func__, __FILE__, __LINE__}, message));
  }
  FailedRanks::Of().Add(lockstep_error_message(error), lockstep_error_failed_rank(error));
  // The words that PyTorch's own users look for.
  const std::string said =
      code == LOCKSTEP_DEADLINE_EXCEEDED ? "lockstep: Timed out waiting: " + message.substr(10) : message;
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__}, said));
}

// Frees what a call returned, and throws it if it is an error.
inline void Check(lockstep_error* error) {
  const ErrorPtr owned(error);
  if (owned != nullptr) std::rethrow_exception(ToException(owned.get()));
}

// Lets Python handle signals, and throws the exception that a handler raises (KeyboardInterrupt). The operator's kernel is a Python
// function, so this library does not depend on Python. REQUIRES the main thread, the only one in which Python handles signals.
inline void CheckSignals() {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("lockstep::check_signals", "").typed<void()>();
  op.call();
}

// By the system call: glibc has a function for it only since 2.30.
inline bool InMainThread() { return syscall(SYS_gettid) == getpid(); }

// Waits for at most timeout_ms. RETURNS the operation's error, or DEADLINE_EXCEEDED if it continues.
inline ErrorPtr Await(lockstep_work* work, int64_t timeout_ms) {
  if (work == nullptr) return nullptr;
  if (!InMainThread()) return ErrorPtr(lockstep_work_wait(work, timeout_ms));
  for (bool done = false;; done = lockstep_work_done(work) != 0) {
    const int64_t slice_ms = std::min(timeout_ms, kSliceMs);
    timeout_ms -= slice_ms;
    ErrorPtr error(lockstep_work_wait(work, slice_ms));
    // DEADLINE_EXCEEDED is the end of the slice, or the operation's own result: what comes once it is done.
    if (done || timeout_ms <= 0 || lockstep_error_code(error.get()) != LOCKSTEP_DEADLINE_EXCEEDED) return error;
    CheckSignals();
  }
}

}  // namespace lockstep_torch

#endif  // PYTHON_LOCKSTEP_TORCH_CSRC_ERRORS_H_
