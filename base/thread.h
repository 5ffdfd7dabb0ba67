// A named thread of ours: it blocks every signal, so that the embedding program's handlers never run on it.

#ifndef BASE_THREAD_H_
#define BASE_THREAD_H_

#include <cstdint>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace lockstep {

// Joined by Join() or by the destructor: whoever owns the thread first tells its body to end. In a forked child, where
// the thread does not exist, both only forget it. Every thread is listed in docs/threading.md.
class Thread {
 public:
  Thread() = default;
  // Starts at once. `name` shows in ps and gdb; Linux keeps 15 characters. REQUIRES that a thread can be had: otherwise it throws what
  // std::thread does.
  Thread(const std::string& name, absl::AnyInvocable<void()> body);
  ~Thread() { Join(); }
  Thread(Thread&& other) = default;
  Thread& operator=(Thread&& other);

  // Joins what it was and starts this. RESOURCE_EXHAUSTED, with what limits threads, when none can be had: then it is no thread.
  absl::Status Start(const std::string& name, absl::AnyInvocable<void()> body);

  bool joinable() const { return thread_.joinable(); }
  void Join();
  // Lets it run to its end by itself: for a body that waits for something which cannot be told to end, and that touches nothing
  // but what it owns.
  void Detach();

  // Whether the caller is on a thread that was made here, not on one of the embedding program's.
  static bool IsOurs();

 private:
  // True in a forked child, where there is no thread.
  bool ForgetInChild();

  std::thread thread_;
  uint64_t fork_generation_ = 0;
};

}  // namespace lockstep

#endif  // BASE_THREAD_H_
