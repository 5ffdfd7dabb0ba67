#include "launch/signal_inbox.h"

#include <errno.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int kRead[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD};

// The process in which there is an inbox; 0: none.
std::atomic<pid_t> open_in{0};
// Of the last inbox, also when it is gone: a handler that began before then sends on to its thread, where whatever the process did
// with the signal before applies.
std::atomic<pid_t> owner_process{0};
std::atomic<pid_t> owner_thread{0};

// Runs on threads that do not block the signal.
void SendOn(int signal, siginfo_t* info, void* /*context*/) {
  const int error_before = errno;
  const pid_t process = getpid();
  if (process == owner_process.load()) {
    siginfo_t sent_on = *info;
    sent_on.si_code = SI_QUEUE;  // as whose the kernel does not let one thread send another's
    const pid_t thread = owner_thread.load();
    // A filter of system calls may know the older one alone, which does not tell the child.
    if (syscall(SYS_rt_tgsigqueueinfo, process, thread, signal, &sent_on) != 0) {
      syscall(SYS_tgkill, process, thread, signal);
    }
  } else {
    // In a child that has yet to begin its program.
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    kill(process, signal);
  }
  errno = error_before;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalInbox>> SignalInbox::Open() {
  sigset_t read;
  sigemptyset(&read);
  for (const int signal : kRead) sigaddset(&read, signal);
  // That of another process is its parent's, in a fork.
  pid_t holder = open_in.load();
  do {
    if (holder == getpid()) {
      return absl::FailedPreconditionError("the process's signals are somebody else's to supervise");
    }
  } while (!open_in.compare_exchange_weak(holder, getpid()));
  auto no_longer = absl::MakeCleanup([] { open_in.store(0); });
  std::unique_ptr<SignalInbox> inbox(new SignalInbox());
  const int fd = signalfd(-1, &read, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "create a signal descriptor");

  // Blocked but not read: a write to a closed pipe then only fails.
  sigset_t blocked = read;
  sigaddset(&blocked, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &blocked, &inbox->mask_before_);
  inbox->RedirectToThisThread();
  inbox->fd_ = fd;
  std::move(no_longer).Cancel();
  return inbox;
}

void SignalInbox::RedirectToThisThread() {
  owner_thread.store(static_cast<pid_t>(syscall(SYS_gettid)));
  owner_process.store(getpid());
  struct sigaction action = {};
  action.sa_sigaction = &SendOn;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  for (const int signal : kRead) {
    struct sigaction before;
    sigaction(signal, nullptr, &before);
    // A parent's inbox, which is not there in a fork.
    if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction == &SendOn) {
      before = {};
      before.sa_handler = SIG_DFL;
    }
    // An inherited SIG_IGN of SIGCHLD would make the kernel reap the children, and their ends would be unknown. Others are for children
    // to inherit.
    if (before.sa_handler == SIG_IGN && signal != SIGCHLD) continue;
    sigaction(signal, &action, nullptr);
    actions_before_.emplace_back(signal, before);
  }
}

SignalInbox::~SignalInbox() {
  if (fd_ < 0) return;
  close(fd_);
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  const timespec at_once = {};
  while (sigtimedwait(&pipe_signal, nullptr, &at_once) > 0) {
  }
  for (const auto& [signal, action] : actions_before_) sigaction(signal, &action, nullptr);
  open_in.store(0);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

absl::optional<SignalInbox::Received> SignalInbox::Take() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return absl::nullopt;
  return Received{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace lockstep
