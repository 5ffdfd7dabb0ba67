// Spawn: starts one program in a process group of its own, so that one signal reaches all its descendants. The child dies with
// its parent.
//
// For the launcher and the multi-process tests. Code between fork() and execve() is async-signal-safe: the caller may have
// threads.

#ifndef LAUNCH_SPAWN_H_
#define LAUNCH_SPAWN_H_

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

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
  // Runs in the child, in its own group, right before the program. Must be async-signal-safe.
  void (*in_child)(const void* context) = nullptr;
  const void* in_child_context = nullptr;
};

// REQUIRES  the calling thread outlives the child: the child gets SIGKILL when that thread ends
// RETURNS   the child's process id, which is also its group's
// ERRORS    NOT_FOUND, PERMISSION_DENIED, FAILED_PRECONDITION (not a program). There is no child then
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// The path of an executable file: `name` itself if it has a slash, else the first match in PATH.
// ERRORS  NOT_FOUND, PERMISSION_DENIED, with the places that were searched
absl::StatusOr<std::string> FindProgram(absl::string_view name);

// This process's environment with these variables set, and those of `dropped` not set.
std::vector<std::string> EnvironmentWith(const std::vector<std::pair<std::string, std::string>>& variables,
                                         absl::Span<const absl::string_view> dropped = {});

// A status of waitpid() as text: "exited with status 3", "was killed by signal 11 (SIGSEGV), core dumped".
std::string DescribeWaitStatus(int wait_status);

// A small process that ends its owner's process groups if the owner dies first, even by SIGKILL.
//
// A death signal (PR_SET_PDEATHSIG) reaches only children; the guardian reaches their children too. It is a fork of its owner,
// holds one end of a socket pair and no other descriptor, and sleeps until a message comes or the owner's death closes the
// socket.
//
// Not thread-safe.
class ProcessGuardian {
 public:
  static constexpr int kGroupsMax = 4096;

  // Forks. Start it before opening descriptors that must not stay open in another process.
  static absl::StatusOr<std::unique_ptr<ProcessGuardian>> Start();

  // Ends the guardian, not the groups it watches. Waits for its process, which takes microseconds.
  ~ProcessGuardian();
  ProcessGuardian(const ProcessGuardian&) = delete;
  ProcessGuardian& operator=(const ProcessGuardian&) = delete;

  // Watches the caller's own group, at most kGroupsMax at once. Async-signal-safe.
  // REQUIRES  the caller is a forked child that leads a group, and has not done anything yet that might outlive the owner
  static void WatchCaller(const void* guardian);
  // Stops watching the group. For a group without members: its number may soon belong to another process.
  void Forget(pid_t group);

 private:
  ProcessGuardian(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  void Tell(pid_t message) const;

  const pid_t pid_;
  const int socket_;
};

}  // namespace lockstep

#endif  // LAUNCH_SPAWN_H_
