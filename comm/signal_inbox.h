// SignalInbox: turns the signals of a process that supervises others into descriptor events.

#ifndef COMM_SIGNAL_INBOX_H_
#define COMM_SIGNAL_INBOX_H_

#include <signal.h>
#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace lockstep {

// Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD and SIGPIPE on the thread that creates
// it, which is the one that uses and destroys it; the destructor puts everything back.
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

  // Readable when a signal is there.
  int fd() const { return fd_; }
  // Does not wait.
  absl::optional<Received> Take();

  // What was blocked before: for the children.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  SignalInbox() = default;

  int fd_ = -1;
  sigset_t mask_before_;
  struct sigaction sigchld_before_;
};

}  // namespace lockstep

#endif  // COMM_SIGNAL_INBOX_H_
