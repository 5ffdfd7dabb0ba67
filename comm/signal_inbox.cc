#include "comm/signal_inbox.h"

#include <errno.h>
#include <pthread.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<SignalInbox>> SignalInbox::Open() {
  std::unique_ptr<SignalInbox> inbox(new SignalInbox());
  sigset_t read;
  sigemptyset(&read);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD}) sigaddset(&read, signal);
  const int fd = signalfd(-1, &read, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "create a signal descriptor");

  // Blocked but not read: a write to a closed pipe then only fails.
  sigset_t blocked = read;
  sigaddset(&blocked, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &blocked, &inbox->mask_before_);
  // An inherited SIG_IGN would make the kernel reap the children, and their ends would be unknown.
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigaction(SIGCHLD, &action, &inbox->sigchld_before_);
  inbox->fd_ = fd;
  return inbox;
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
  sigaction(SIGCHLD, &sigchld_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

absl::optional<SignalInbox::Received> SignalInbox::Take() {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return absl::nullopt;
  return Received{static_cast<int>(info.ssi_signo), static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace lockstep
