#include "comm/signal_inbox.h"

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

// The inbox's, read by signal handlers; 0: there is none.
std::atomic<pid_t> owner_process{0};
std::atomic<pid_t> owner_thread{0};

// Runs on threads that do not block the signal.
void SendOn(int signal, siginfo_t* info, void* /*context*/) {
  const int error_before = errno;
  if (getpid() == owner_process.load(std::memory_order_relaxed)) {
    siginfo_t sent_on = *info;
    sent_on.si_code = SI_QUEUE;  // as whose the kernel does not let one thread send another's
    syscall(SYS_rt_tgsigqueueinfo, getpid(), owner_thread.load(std::memory_order_relaxed), signal, &sent_on);
  } else {
    // In a child that has yet to begin its program.
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    kill(getpid(), signal);
  }
  errno = error_before;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalInbox>> SignalInbox::Open() {
  sigset_t read;
  sigemptyset(&read);
  for (const int signal : kRead) sigaddset(&read, signal);
  pid_t nobody = 0;
  if (!owner_process.compare_exchange_strong(nobody, getpid()) && nobody == getpid()) {
    return absl::FailedPreconditionError("the process's signals are somebody else's to supervise");
  }
  // Inherited by a fork, or ours.
  owner_process.store(getpid());
  auto no_longer = absl::MakeCleanup([] { owner_process.store(0); });
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
  struct sigaction action = {};
  action.sa_sigaction = &SendOn;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigfillset(&action.sa_mask);
  for (const int signal : kRead) {
    struct sigaction before;
    sigaction(signal, nullptr, &before);
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
  owner_process.store(0);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

absl::optional<SignalInbox::Received> SignalInbox::Take() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return absl::nullopt;
  return Received{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace lockstep
