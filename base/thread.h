// A named thread that blocks every signal, so that the embedding program's handlers never run on it.

#ifndef BASE_THREAD_H_
#define BASE_THREAD_H_

#include <cstdint>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace lockstep {

// Join() or the destructor waits for the body to return: the owner first tells it to end. In a forked child, where the thread
// does not exist, both only forget it. Every thread is listed in docs/threading.md.
class Thread {
 public:
  Thread() = default;
  // Starts at once. `name` shows in ps and gdb; Linux keeps 15 characters. Throws what std::thread throws when the system has
  // no thread to give.
  Thread(const std::string& name, absl::AnyInvocable<void()> body);
  ~Thread() { Join(); }
  Thread(Thread&& other) = default;
  Thread& operator=(Thread&& other);

  // Joins the current thread, if any, and starts `body` on a new one. RESOURCE_EXHAUSTED names the limits on threads; there is
  // then no thread.
  absl::Status Start(const std::string& name, absl::AnyInvocable<void()> body);

  bool joinable() const { return thread_.joinable(); }
  void Join();
  // Never joins it. For a body that may block for ever and that uses only what it owns.
  void Detach();

  // Whether the calling thread is a Thread, not one of the embedding program's.
  static bool IsOurs();

 private:
  // True in a forked child, where there is no thread.
  bool ForgetInChild();

  std::thread thread_;
  uint64_t fork_generation_ = 0;
};

}  // namespace lockstep

#endif  // BASE_THREAD_H_
