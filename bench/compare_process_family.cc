#include "bench/compare_process_family.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/spawn.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int64_t kGraceMs = 3000;   // from SIGTERM to SIGKILL
constexpr int64_t kEndingMs = 2000;  // for the status of a process whose socket has closed
constexpr int kLookMs = 20;          // between looks at processes

}  // namespace

Subreaper::Subreaper() {
  prctl(PR_GET_CHILD_SUBREAPER, &before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Subreaper::~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }

absl::Status ProcessFamily::Start(const std::vector<std::string>& words,
                                  const std::vector<std::pair<std::string, std::string>>& environment) {
  // Not a UniqueFd: a forked child closes those at once.
  const int output = open(output_file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (output < 0) return ErrnoStatus(errno, absl::StrCat("open ", output_file_));
  const auto close_output = absl::MakeCleanup([output] { close(output); });
  SpawnOptions spawn;
  LOCKSTEP_ASSIGN_OR_RETURN(spawn.path, FindProgram(words[0]));
  spawn.arguments = words;
  spawn.environment = EnvironmentWith(environment);
  spawn.stdout_fd = output;
  spawn.stderr_fd = output;
  LOCKSTEP_ASSIGN_OR_RETURN(const pid_t pid, Spawn(spawn));
  started_.push_back({pid});
  return absl::OkStatus();
}

void ProcessFamily::Adopt(pid_t pid) {
  Adopted adopted;
  adopted.pid = pid;
  if (const long descriptor = syscall(SYS_pidfd_open, pid, 0); descriptor >= 0) {
    adopted.process = UniqueFd(static_cast<int>(descriptor));
  }
  adopted_.push_back(std::move(adopted));
}

bool ProcessFamily::SomeEnded() {
  bool some = false;
  for (Started& process : started_) {
    if (!process.ended) {
      // Looked at, not reaped: while it is there its number, which is its group's too, belongs to nobody else.
      siginfo_t end = {};
      process.ended = waitid(P_PID, process.pid, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid != 0;
    }
    some = some || process.ended;
  }
  return some;
}

bool ProcessFamily::AllEnded(Deadline deadline) {
  for (;;) {
    SomeEnded();
    if (std::all_of(started_.begin(), started_.end(), [](const Started& process) { return process.ended; }))
      return true;
    if (deadline.passed()) return false;
    poll(nullptr, 0, std::min(kLookMs, deadline.remaining_ms()));
  }
}

ProcessFamily::Started* ProcessFamily::FindEnded(pid_t preferred) {
  Started* some = nullptr;
  for (Started& process : started_) {
    if (!process.ended || process.reaped) continue;
    if (process.pid == preferred) return &process;
    if (some == nullptr) some = &process;
  }
  return some;
}

std::string ProcessFamily::DescribeEnd(pid_t preferred) {
  const Deadline deadline = Deadline::AfterMs(kEndingMs);
  while (!SomeEnded() && !deadline.passed()) poll(nullptr, 0, kLookMs);
  Started* const process = FindEnded(preferred);
  if (process == nullptr) return absl::StrCat("closed its connection", LastOutput());
  kill(-process->pid, SIGKILL);
  int wait_status = 0;
  waitpid(process->pid, &wait_status, 0);
  process->reaped = true;
  return absl::StrCat(DescribeWaitStatus(wait_status), LastOutput());
}

std::string ProcessFamily::LastOutput() const {
  std::ifstream output(output_file_);
  std::string last;
  for (std::string line; std::getline(output, line);) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "" : absl::StrCat("; it wrote: ", last);
}

void ProcessFamily::SignalAll(int signal) {
  for (const Started& process : started_) {
    if (!process.reaped) kill(-process.pid, signal);
  }
  for (const Adopted& process : adopted_) {
    if (process.process.valid()) syscall(SYS_pidfd_send_signal, process.process.get(), signal, nullptr, 0);
  }
}

ProcessFamily::~ProcessFamily() {
  if (!AllEnded(Deadline::Now())) {
    SignalAll(SIGTERM);
    AllEnded(Deadline::AfterMs(kGraceMs));
  }
  SignalAll(SIGKILL);
  for (const Started& process : started_) {
    // With what it left in its group: children of a process that has ended are ours.
    while (waitpid(-process.pid, nullptr, 0) > 0) {
    }
  }
  // Those whose launcher is gone are our children now; of others there is nothing to reap.
  for (const Adopted& process : adopted_) waitpid(process.pid, nullptr, 0);
}

}  // namespace bench
}  // namespace lockstep
