#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/default_floats.h"
#include "base/fork.h"
#include "base/limits.h"

namespace lockstep {
namespace {

thread_local bool thread_is_ours = false;

// A new thread inherits the mask of its creator, so that it never runs a moment with signals unblocked.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Thread::Thread(const std::string& name, absl::AnyInvocable<void()> body) : fork_generation_(ForkGeneration()) {
  const AllSignalsBlocked blocked;
  thread_ = std::thread(
      [name = name.substr(0, 15)](absl::AnyInvocable<void()> body) {
        thread_is_ours = true;
        const DefaultFloats floats;  // its creator's mode is inherited
        pthread_setname_np(pthread_self(), name.c_str());
        body();
      },
      std::move(body));
}

absl::Status Thread::Start(const std::string& name, absl::AnyInvocable<void()> body) {
  try {
    *this = Thread(name, std::move(body));
    return absl::OkStatus();
  } catch (const std::system_error& error) {
    Join();
    return absl::ResourceExhaustedError(
        absl::StrCat("start the thread ", name, ": ", error.code().message(), ": ", LimitsOnThreads()));
  }
}

Thread& Thread::operator=(Thread&& other) {
  if (this != &other) {
    Join();
    thread_ = std::move(other.thread_);
    fork_generation_ = other.fork_generation_;
  }
  return *this;
}

bool Thread::IsOurs() { return thread_is_ours; }

void Thread::Join() {
  if (!joinable() || ForgetInChild()) return;
  LOCKSTEP_CHECK(thread_.get_id() != std::this_thread::get_id()) << "a thread cannot join itself";
  thread_.join();
}

void Thread::Detach() {
  if (joinable() && !ForgetInChild()) thread_.detach();
}

bool Thread::ForgetInChild() {
  if (fork_generation_ == ForkGeneration()) return false;
  // The thread is the parent's. Neither join nor detach may touch its handle, whose memory the child's libc has reused: the
  // object is overwritten instead of destroyed.
  new (&thread_) std::thread;
  return true;
}

}  // namespace lockstep
