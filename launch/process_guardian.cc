#include "launch/process_guardian.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"

namespace lockstep {
namespace {

// A message is one pid_t: a group to watch, minus a group to forget, or this: the owner is done, leave all alone.
constexpr pid_t kDone = 0;

void CloseAllBut(int descriptor) {
  for (int i = 0; i < 3; ++i) {
    if (i != descriptor) close(i);
  }
#ifdef SYS_close_range
  if ((descriptor <= 3 || syscall(SYS_close_range, 3, descriptor - 1, 0) == 0) &&
      syscall(SYS_close_range, descriptor + 1, ~0u, 0) == 0) {
    return;
  }
#endif
  const long limit = sysconf(_SC_OPEN_MAX);
  for (int i = 3; i < limit; ++i) {
    if (i != descriptor) close(i);
  }
}

// The guardian's whole life. Only async-signal-safe calls: the owner may have had threads when it forked.
[[noreturn]] void Guard(int socket) {
  setsid();  // away from the terminal's signals and from whoever signals the owner's group
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  prctl(PR_SET_NAME, "lockstep-guard");
  CloseAllBut(socket);

  static pid_t groups[ProcessGuardian::kGroupsMax];
  int count = 0;
  for (;;) {
    pid_t message;
    const ssize_t received = read(socket, &message, sizeof(message));
    if (received < 0 && errno == EINTR) continue;
    if (received != sizeof(message)) break;
    if (message == kDone) _exit(0);
    if (message > 0) {
      if (count < ProcessGuardian::kGroupsMax) groups[count++] = message;
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if (groups[i] == -message) groups[i--] = groups[--count];
    }
  }
  for (int i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGuardian>> ProcessGuardian::Start() {
  // Not a pipe: a write to one whose reader was killed raises SIGPIPE.
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "create a socket pair");
  }
  const pid_t pid = fork();
  if (pid == 0) Guard(ends[0]);
  const int fork_error = errno;
  close(ends[0]);
  if (pid < 0) {
    close(ends[1]);
    return ErrnoStatus(fork_error, "fork the guardian process");
  }
  return std::unique_ptr<ProcessGuardian>(new ProcessGuardian(pid, ends[1]));
}

ProcessGuardian::~ProcessGuardian() {
  Tell(kDone);
  close(socket_);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessGuardian::WatchCaller(const void* guardian) {
  static_cast<const ProcessGuardian*>(guardian)->Tell(getpid());
}

void ProcessGuardian::Forget(pid_t group) { Tell(-group); }

void ProcessGuardian::Tell(pid_t message) const {
  // An error means that somebody killed the guardian: the job still runs, only less well guarded.
  while (send(socket_, &message, sizeof(message), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace lockstep
