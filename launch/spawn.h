// Spawn: starts one program in a process group of its own, so that its whole family can be signalled, and tied to the
// life of its parent, so that none of it is left behind.
//
// Used by the launcher and by the multi-process tests. What happens between fork() and execve() is async-signal-safe:
// the caller may have threads.

#ifndef LAUNCH_SPAWN_H_
#define LAUNCH_SPAWN_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

struct SpawnOptions {
  std::string path;                      // of the program; FindProgram() makes one from a name
  std::vector<std::string> arguments;    // argv, from the program's own name on
  std::vector<std::string> environment;  // all of it, as "NAME=value"
  // Become the child's descriptors 0, 1 and 2; borrowed. -1: /dev/null.
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  sigset_t signal_mask = {};  // the child's; default: nothing blocked
  // A background group may then use tcsetattr() on its terminal without being stopped.
  bool ignore_terminal_stop = false;
  // Runs in the child, in its own group, right before the program: it must be async-signal-safe. For what has to be
  // true before the program does anything.
  void (*in_child)(const void* context) = nullptr;
  const void* in_child_context = nullptr;
};

// Returns the child's process id, which is its group's too. When the program cannot be executed no child is left, and
// the error says why: NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION (not a program).
//
// The child is killed (SIGKILL) when the calling thread ends, in whatever way: call from a thread that outlives the
// child.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// The path of an executable file: `name` itself when it has a slash, else the first match in PATH. NOT_FOUND or
// PERMISSION_DENIED, saying where was looked.
absl::StatusOr<std::string> FindProgram(absl::string_view name);

// This process's environment with these variables set.
std::vector<std::string> EnvironmentWith(const std::vector<std::pair<std::string, std::string>>& variables);

// What waitpid() told: "exited with status 3", "was killed by signal 11 (SIGSEGV), core dumped".
std::string DescribeWaitStatus(int wait_status);

}  // namespace lockstep

#endif  // LAUNCH_SPAWN_H_
