// SignalInbox: turns the signals of a process that supervises others into descriptor events.

#ifndef LAUNCH_SIGNAL_INBOX_H_
#define LAUNCH_SIGNAL_INBOX_H_

#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace lockstep {

// Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD and SIGPIPE on the thread that creates it. The
// same thread uses and destroys it; the destructor restores everything. Other threads of the process (a driver's, for example)
// need not block them: a signal that reaches one of those is passed on to the inbox. Signals that the process ignores may not arrive,
// except SIGCHLD. One inbox at a time: Open returns FAILED_PRECONDITION while there is another.
class SignalInbox {
 public:
  struct Received {
    int signal;
    pid_t sender;  // of SIGCHLD: the child
  };

  static absl::StatusOr<std::unique_ptr<SignalInbox>> Open();
  ~SignalInbox();
  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  // Readable while Take() has a signal.
  int fd() const { return fd_; }
  // Does not wait.
  absl::optional<Received> Take();

  // The signals that were blocked before, for the children.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  SignalInbox() = default;

  void RedirectToThisThread();

  int fd_ = -1;
  sigset_t mask_before_;
  std::vector<std::pair<int, struct sigaction>> actions_before_;  // by signal
};

}  // namespace lockstep

#endif  // LAUNCH_SIGNAL_INBOX_H_
