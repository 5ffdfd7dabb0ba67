#include "launch/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace lockstep {
namespace {

// What the child tells its parent when it could not become the program.
struct ChildFailure {
  enum Step : int { kPrepare, kExec } step;
  int error;
};

// Everything the child needs, laid out before fork(): the child must not allocate.
struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int descriptors[3];
  const sigset_t* signal_mask;
  void (*in_child)(const void* context);
  const void* in_child_context;
  bool ignore_terminal_stop;
  pid_t parent;
  int failure_fd;
};

[[noreturn]] void Fail(const ChildPlan& plan, ChildFailure::Step step) {
  const ChildFailure failure = {step, errno};
  // A pipe takes these few bytes whole; should it not, the parent sees the end of the pipe and the exit status.
  (void)!write(plan.failure_fd, &failure, sizeof(failure));
  _exit(127);
}

// Moves the three descriptors into place. They are first lifted above 2, so that none is overwritten before it is used;
// dup2 clears close-on-exec.
void PlaceDescriptors(const ChildPlan& plan) {
  int lifted[3];
  for (int i = 0; i < 3; ++i) {
    const int source = plan.descriptors[i] >= 0 ? plan.descriptors[i] : open("/dev/null", O_RDWR | O_CLOEXEC);
    if (source < 0) Fail(plan, ChildFailure::kPrepare);
    lifted[i] = fcntl(source, F_DUPFD_CLOEXEC, 3);
    if (lifted[i] < 0) Fail(plan, ChildFailure::kPrepare);
  }
  for (int i = 0; i < 3; ++i) {
    if (dup2(lifted[i], i) < 0) Fail(plan, ChildFailure::kPrepare);
  }
}

[[noreturn]] void RunChild(const ChildPlan& plan) {
  if (setpgid(0, 0) != 0) Fail(plan, ChildFailure::kPrepare);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) Fail(plan, ChildFailure::kPrepare);
  if (getppid() != plan.parent) _exit(127);  // it died before the line above
  PlaceDescriptors(plan);
  if (plan.ignore_terminal_stop) signal(SIGTTOU, SIG_IGN);
  if (sigprocmask(SIG_SETMASK, plan.signal_mask, nullptr) != 0) Fail(plan, ChildFailure::kPrepare);
  if (plan.in_child != nullptr) plan.in_child(plan.in_child_context);
  execve(plan.path, plan.arguments, plan.environment);
  Fail(plan, ChildFailure::kExec);
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status FailureStatus(const ChildFailure& failure, const std::string& path) {
  if (failure.step == ChildFailure::kPrepare) return ErrnoStatus(failure.error, absl::StrCat("prepare to run ", path));
  if (failure.error == ENOEXEC) {
    return absl::FailedPreconditionError(
        absl::StrCat("run ", path, ": neither a program for this machine nor a script that begins with #!"));
  }
  if (failure.error == ENOENT) {
    return absl::NotFoundError(absl::StrCat("run ", path, ": it or its interpreter does not exist"));
  }
  return ErrnoStatus(failure.error, absl::StrCat("run ", path));
}

// Whether `path` is a regular file that we may execute; otherwise errno says why not.
bool IsExecutable(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return false;
  if (S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    return false;
  }
  return access(path.c_str(), X_OK) == 0;
}

// ---- The guardian.

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

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  const std::vector<char*> arguments = Pointers(options.arguments);
  const std::vector<char*> environment = Pointers(options.environment);
  int failure_pipe[2];
  if (pipe2(failure_pipe, O_CLOEXEC) != 0) return ErrnoStatus(errno, "create a pipe");

  const ChildPlan plan = {options.path.c_str(),
                          arguments.data(),
                          environment.data(),
                          {options.stdin_fd, options.stdout_fd, options.stderr_fd},
                          &options.signal_mask,
                          options.in_child,
                          options.in_child_context,
                          options.ignore_terminal_stop,
                          getpid(),
                          failure_pipe[1]};
  const pid_t pid = fork();
  if (pid == 0) RunChild(plan);
  const int fork_error = errno;
  close(failure_pipe[1]);
  if (pid < 0) {
    close(failure_pipe[0]);
    return ErrnoStatus(fork_error, absl::StrCat("fork for ", options.path));
  }

  // Ends when execve() closes the pipe, so the group exists and the program runs once this returns.
  ChildFailure failure;
  ssize_t received;
  do {
    received = read(failure_pipe[0], &failure, sizeof(failure));
  } while (received < 0 && errno == EINTR);
  close(failure_pipe[0]);
  if (received == 0) return pid;
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (received != sizeof(failure))
    return absl::InternalError(absl::StrCat("run ", options.path, ": the child vanished"));
  return FailureStatus(failure, options.path);
}

absl::StatusOr<std::string> FindProgram(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("the program's name is empty");
  if (absl::StrContains(name, "/")) {
    std::string path(name);
    if (IsExecutable(path)) return path;
    if (errno == EISDIR) return absl::PermissionDeniedError(absl::StrCat(path, ": is a directory, not a program"));
    return ErrnoStatus(errno, path);
  }
  const char* variable = getenv("PATH");
  const std::string search = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  std::string forbidden;
  for (absl::string_view folder : absl::StrSplit(search, ':')) {
    std::string path = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (IsExecutable(path)) return path;
    if (errno == EACCES && forbidden.empty()) forbidden = std::move(path);
  }
  if (!forbidden.empty()) return absl::PermissionDeniedError(absl::StrCat(forbidden, ": is not executable"));
  return absl::NotFoundError(absl::StrCat("no program '", name, "' in PATH (", search, ")"));
}

std::vector<std::string> EnvironmentWith(const std::vector<std::pair<std::string, std::string>>& variables,
                                         absl::Span<const absl::string_view> dropped) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    const absl::string_view name = text.substr(0, text.find('='));
    bool replaced = std::find(dropped.begin(), dropped.end(), name) != dropped.end();
    for (const auto& variable : variables) replaced = replaced || name == variable.first;
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& variable : variables) result.push_back(absl::StrCat(variable.first, "=", variable.second));
  return result;
}

std::string DescribeWaitStatus(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exited with status ", WEXITSTATUS(wait_status));
  if (!WIFSIGNALED(wait_status)) return absl::StrCat("has the unknown wait status ", wait_status);
  const int signal = WTERMSIG(wait_status);
  const char* name = sigabbrev_np(signal);
  return absl::StrCat("was killed by signal ", signal, name != nullptr ? absl::StrCat(" (SIG", name, ")") : "",
                      WCOREDUMP(wait_status) ? ", core dumped" : "");
}

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
