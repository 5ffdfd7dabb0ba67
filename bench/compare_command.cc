#include "bench/compare_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/fork.h"
#include "base/status.h"
#include "comm/spawn.h"

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kToldBytes = 600;  // of what a failing program wrote

// Until the program, and whoever else has the pipe, closes it.
absl::Status ReadAll(int pipe, Deadline deadline, std::string* text) {
  for (;;) {
    pollfd waiting = {pipe, POLLIN, 0};
    const int ready = poll(&waiting, 1, deadline.remaining_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return absl::DeadlineExceededError("it did not end in time");
    char bytes[4096];
    const ssize_t received = read(pipe, bytes, sizeof(bytes));
    if (received < 0) return ErrnoStatus(errno, "read its output");
    if (received == 0) return absl::OkStatus();
    text->append(bytes, received);
  }
}

}  // namespace

absl::StatusOr<std::string> RunCommand(const std::vector<std::string>& words, Deadline deadline) {
  SpawnOptions spawn;
  LOCKSTEP_ASSIGN_OR_RETURN(spawn.path, FindProgram(words[0]));
  spawn.arguments = words;
  spawn.environment = EnvironmentWith({});
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  const UniqueFd read_end(ends[0]);
  // No UniqueFd for what the child gets: it closes those at once.
  spawn.stdout_fd = ends[1];
  spawn.stderr_fd = ends[1];
  const absl::StatusOr<pid_t> started = Spawn(spawn);
  close(ends[1]);
  LOCKSTEP_ASSIGN_OR_RETURN(const pid_t pid, started);
  std::string text;
  const absl::Status read = ReadAll(read_end.get(), deadline, &text);
  if (!read.ok()) kill(-pid, SIGKILL);
  int wait_status = 0;
  while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) continue;
  const std::string attempt = absl::StrJoin(words, " ");
  if (!read.ok()) return Annotate(read, attempt);
  if (wait_status == 0) return text;
  return absl::UnknownError(
      absl::StrCat(attempt, " ", DescribeWaitStatus(wait_status), ": ", text.substr(0, kToldBytes)));
}

}  // namespace bench
}  // namespace lockstep
