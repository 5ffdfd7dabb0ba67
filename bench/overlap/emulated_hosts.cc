#include "bench/overlap/emulated_hosts.h"

#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

// The tool's exit status where namespaces are not permitted.
constexpr int kNotPermitted = 77;

absl::StatusOr<std::string> ThisProgram() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length < 0) return ErrnoStatus(errno, "read /proc/self/exe");
  return std::string(path, length);
}

absl::StatusOr<std::string> FindTool() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string program, ThisProgram());
  const char* const tool_name = "tools/emulated-hosts";
  // Beside the program as Bazel lays it out, or where a test is started.
  std::string tool = absl::StrCat(program, ".runfiles/lockstep/", tool_name);
  if (access(tool.c_str(), X_OK) != 0) tool = tool_name;
  if (access(tool.c_str(), X_OK) == 0) return tool;
  return absl::NotFoundError(
      absl::StrCat("no ", tool_name, " in ", program, ".runfiles/lockstep nor in this folder: --link needs it"));
}

// As execv and posix_spawn take them.
std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<bool> HostsCanBeEmulated() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string tool, FindTool());
  std::vector<std::string> words = {tool, "--hosts", "1", "--", "true"};
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  posix_spawn_file_actions_addopen(&silent, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&silent, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawn(&child, tool.c_str(), &silent, nullptr, Pointers(words).data(), environ);
  posix_spawn_file_actions_destroy(&silent);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("run ", tool));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return ErrnoStatus(errno, absl::StrCat("wait for ", tool));
  }
  // What else is wrong it says itself, when it is run for the measurement.
  return !(WIFEXITED(status) && WEXITSTATUS(status) == kNotPermitted);
}

absl::Status BecomeEmulatedHosts(int ranks, const std::string& rate, char** argv) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string program, ThisProgram());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string tool, FindTool());
  std::vector<std::string> words = {tool, "--hosts", absl::StrCat(ranks), "--rate", rate, "--", program};
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  execv(tool.c_str(), Pointers(words).data());
  return ErrnoStatus(errno, absl::StrCat("run ", tool));
}

}  // namespace bench
}  // namespace lockstep
