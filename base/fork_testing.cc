#include "base/fork_testing.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace lockstep {

int RunInForkedChild(absl::FunctionRef<int()> body, Deadline deadline) {
  // The child holds the writing end: the end of the child is the end of the file.
  int ends[2];
  if (pipe(ends) != 0) {
    std::perror("pipe");
    std::abort();
  }
  const pid_t child = fork();
  if (child < 0) {
    std::perror("fork");
    std::abort();
  }
  if (child == 0) {
    close(ends[0]);
    _exit(body());
  }
  close(ends[1]);
  pollfd end_of_file = {ends[0], POLLIN, 0};
  const bool ended = poll(&end_of_file, 1, deadline.remaining_ms()) == 1;
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  close(ends[0]);
  if (!ended) return kChildHung;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace lockstep
