#include "tests/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/spawn.h"

namespace lockstep {
namespace {

// Not LOCKSTEP_: the library warns of names of that family that it does not know.
constexpr char kFunctionVariable[] = "RANK_PROCESS_FUNCTION";
constexpr char kRankVariable[] = "RANK_PROCESS_RANK";
constexpr char kSizeVariable[] = "RANK_PROCESS_SIZE";

// A datagram from a rank is a kind and then
//   kMessage   the text
//   kResult    the status code in decimal, a space, the message
constexpr char kMessage = 'm';
constexpr char kResult = 'r';
constexpr size_t kDatagramBytesMax = kProcessMessageBytesMax + 1;

std::map<std::string, RankFunction>& Registry() {
  static auto* registry = new std::map<std::string, RankFunction>();
  return *registry;
}

std::string EncodeResult(const absl::Status& status) {
  // The text is cut rather than lost.
  return absl::StrCat(static_cast<int>(status.code()), " ", status.message().substr(0, kProcessMessageBytesMax - 16));
}

absl::Status DecodeResult(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int code;
  if (!absl::SimpleAtoi(parts.first, &code)) return absl::InternalError(absl::StrCat("malformed result: ", text));
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

absl::Status SendDatagram(int socket, absl::string_view datagram) {
  if (datagram.size() > kDatagramBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", datagram.size(), " bytes is too long"));
  }
  while (send(socket, datagram.data(), datagram.size(), MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return ErrnoStatus(errno, "send a message");
  }
  return absl::OkStatus();
}

// Waits until one of the descriptors is readable or was closed. False when the deadline passed first.
bool WaitReadable(std::vector<pollfd> fds, Deadline deadline) {
  for (;;) {
    const int ready = poll(fds.data(), fds.size(), deadline.remaining_ms());
    if (ready > 0) return true;
    if (ready == 0 && deadline.passed()) return false;
    LOCKSTEP_CHECK(ready >= 0 || errno == EINTR) << "poll: " << strerror(errno);
  }
}

std::string ReadFile(int fd) {
  std::string text;
  char bytes[65536];
  ssize_t received;
  while ((received = pread(fd, bytes, sizeof(bytes), text.size())) > 0) text.append(bytes, received);
  return text;
}

}  // namespace

// ---- The test's side -----------------------------------------------------------------------------------------------

ProcessGroup::ProcessGroup() {
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ProcessGroup::Start(absl::string_view function, const Options& options) {
  if (Registry().count(std::string(function)) == 0) {
    return absl::NotFoundError(absl::StrCat("no LOCKSTEP_RANK_FUNCTION(", function, ") in this program"));
  }
  if (options.size < 1) return absl::InvalidArgumentError(absl::StrCat("a group of ", options.size, " processes"));
  std::unique_ptr<ProcessGroup> group(new ProcessGroup());
  group->name_ = std::string(function);
  group->processes_.reserve(options.size);
  for (int rank = 0; rank < options.size; ++rank) {
    LOCKSTEP_RETURN_IF_ERROR(Annotate(group->StartOne(function, rank, options), absl::StrCat("process ", rank)));
  }
  return group;
}

absl::Status ProcessGroup::StartOne(absl::string_view function, int rank, const Options& options) {
  processes_.emplace_back();
  Process& process = processes_.back();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "create a socket pair");
  }
  process.socket = ends[0];
  process.output_fd = memfd_create("output", MFD_CLOEXEC);

  SpawnOptions spawn;
  spawn.path = "/proc/self/exe";
  spawn.arguments = {absl::StrCat(function, "-", rank)};
  spawn.arguments.insert(spawn.arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::pair<std::string, std::string>> variables = options.environment;
  variables.emplace_back(kFunctionVariable, std::string(function));
  variables.emplace_back(kRankVariable, absl::StrCat(rank));
  variables.emplace_back(kSizeVariable, absl::StrCat(options.size));
  spawn.environment = EnvironmentWith(variables);
  spawn.stdin_fd = ends[1];
  spawn.stdout_fd = process.output_fd;
  spawn.stderr_fd = process.output_fd;
  const absl::StatusOr<pid_t> pid = Spawn(spawn);
  close(ends[1]);
  if (!pid.ok()) return pid.status();
  process.pid = *pid;
  process.pid_fd = syscall(SYS_pidfd_open, *pid, 0);
  if (process.pid_fd < 0) return ErrnoStatus(errno, "pidfd_open");
  return absl::OkStatus();
}

ProcessGroup::~ProcessGroup() {
  for (int rank = 0; rank < size(); ++rank) {
    Process& process = processes_[rank];
    if (process.pid > 0) {
      // With the leader reaped the group's number is ours only as long as a member of it is our child.
      siginfo_t unused;
      if (waitid(P_PGID, process.pid, &unused, WEXITED | WNOHANG | WNOWAIT) == 0) {
        kill(-process.pid, SIGKILL);
        if (!process.reaped) Reap(rank);
        while (waitpid(-process.pid, nullptr, 0) > 0 || errno == EINTR) {
        }
      }
      EXPECT_EQ(kill(-process.pid, 0), -1) << "something of process " << rank << " of " << name_ << " is left";
    }
    if (testing::Test::HasFailure()) {
      std::fprintf(stderr, "---- %s process %d (pid %d): %s\n%s", name_.c_str(), rank, static_cast<int>(process.pid),
                   process.end.ToString().c_str(), Output(rank).c_str());
    }
    for (int fd : {process.pid_fd, process.socket, process.output_fd}) {
      if (fd >= 0) close(fd);
    }
  }
  prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_);
}

absl::Status ProcessGroup::Signal(int rank, int signal) {
  const Process& process = processes_[rank];
  if (process.reaped) return absl::FailedPreconditionError(absl::StrCat("process ", rank, " has ended"));
  if (kill(process.pid, signal) != 0) return ErrnoStatus(errno, absl::StrCat("signal process ", rank));
  return absl::OkStatus();
}

absl::Status ProcessGroup::Send(int rank, absl::string_view message) {
  return Annotate(SendDatagram(processes_[rank].socket, message), absl::StrCat("to process ", rank));
}

absl::StatusOr<std::string> ProcessGroup::Receive(int rank, Deadline deadline) {
  Process& process = processes_[rank];
  for (;;) {
    // What the process sent before it ended is in the socket when its end is seen: so look at the end first.
    const bool ended = process.reaped || WaitReadable({{process.pid_fd, POLLIN, 0}}, Deadline::Now());
    while (process.received.empty() && TakeMessage(&process)) {
    }
    if (!process.received.empty()) {
      std::string message = std::move(process.received.front());
      process.received.erase(process.received.begin());
      return message;
    }
    if (ended) return absl::UnavailableError(absl::StrCat("process ", rank, " ended without sending a message"));
    if (!WaitReadable({{process.socket, POLLIN, 0}, {process.pid_fd, POLLIN, 0}}, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("no message from process ", rank, " in time"));
    }
  }
}

bool ProcessGroup::TakeMessage(Process* process) {
  std::string datagram(kDatagramBytesMax, '\0');
  const ssize_t received = recv(process->socket, &datagram[0], datagram.size(), MSG_DONTWAIT);
  if (received <= 0) return false;
  datagram.resize(received);
  if (datagram[0] == kResult) {
    process->returned = true;
    process->result = DecodeResult(absl::string_view(datagram).substr(1));
  } else {
    process->received.push_back(datagram.substr(1));
  }
  return true;
}

absl::Status ProcessGroup::Wait(int rank, Deadline deadline) {
  Process& process = processes_[rank];
  while (!process.reaped) {
    if (WaitReadable({{process.pid_fd, POLLIN, 0}}, Deadline::Now())) {
      Reap(rank);
      break;
    }
    // Messages are taken meanwhile, so that a rank that sends many does not wait for us.
    if (!WaitReadable({{process.pid_fd, POLLIN, 0}, {process.socket, POLLIN, 0}}, deadline)) {
      return absl::DeadlineExceededError(absl::StrCat("process ", rank, " has not ended in time"));
    }
    while (TakeMessage(&process)) {
    }
  }
  return process.end;
}

std::vector<absl::Status> ProcessGroup::WaitAll(Deadline deadline) {
  std::vector<absl::Status> ends;
  for (int rank = 0; rank < size(); ++rank) ends.push_back(Wait(rank, deadline));
  return ends;
}

std::string ProcessGroup::Output(int rank) const { return ReadFile(processes_[rank].output_fd); }

void ProcessGroup::Reap(int rank) {
  Process& process = processes_[rank];
  int status = 0;
  while (waitpid(process.pid, &status, 0) < 0 && errno == EINTR) {
  }
  process.reaped = true;
  while (TakeMessage(&process)) {
  }
  if (process.returned && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    process.end = process.result;
    return;
  }
  process.end = absl::UnknownError(absl::StrCat("process ", rank, " ", DescribeWaitStatus(status),
                                                process.returned ? " after its function had returned" : ""));
}

// ---- The rank's side -----------------------------------------------------------------------------------------------

RankFunctionRegistration::RankFunctionRegistration(const char* name, RankFunction function) {
  LOCKSTEP_CHECK(Registry().emplace(name, function).second) << "two rank functions called " << name;
}

absl::Status RankProcess::Send(absl::string_view message) {
  return Annotate(SendDatagram(socket_, absl::StrCat(std::string(1, kMessage), message)), "to the test");
}

absl::StatusOr<std::string> RankProcess::Receive(Deadline deadline) {
  if (!WaitReadable({{socket_, POLLIN, 0}}, deadline)) {
    return absl::DeadlineExceededError("no message from the test in time");
  }
  std::string datagram(kDatagramBytesMax, '\0');
  const ssize_t received = recv(socket_, &datagram[0], datagram.size(), 0);
  if (received < 0) return ErrnoStatus(errno, "receive from the test");
  datagram.resize(received);
  return datagram;
}

int RunRankProcess() {
  RankProcess self;
  const std::string name = getenv(kFunctionVariable);
  LOCKSTEP_CHECK(absl::SimpleAtoi(getenv(kRankVariable), &self.rank_));
  LOCKSTEP_CHECK(absl::SimpleAtoi(getenv(kSizeVariable), &self.size_));
  // Programs that the function may start are not ranks.
  unsetenv(kFunctionVariable);
  const std::string command_line = ReadFile(open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  self.arguments_ = absl::StrSplit(command_line, '\0');
  self.arguments_.erase(self.arguments_.begin());
  self.arguments_.pop_back();  // behind the last zero byte

  // The socket came as descriptor 0; the function finds /dev/null there.
  self.socket_ = fcntl(0, F_DUPFD_CLOEXEC, 3);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  LOCKSTEP_CHECK(self.socket_ >= 0 && null >= 0 && dup2(null, 0) == 0) << strerror(errno);
  close(null);

  const auto found = Registry().find(name);
  LOCKSTEP_CHECK(found != Registry().end()) << name;
  absl::Status status = found->second(self);
  if (status.ok() && testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) {
    status = absl::InternalError("an expectation failed; see the process's output");
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  const absl::Status sent = SendDatagram(self.socket_, absl::StrCat(std::string(1, kResult), EncodeResult(status)));
  return sent.ok() ? 0 : 1;
}

}  // namespace lockstep

// The program is the test and, executed again by it, each of its ranks.
int main(int argc, char** argv) {
  if (getenv(lockstep::kFunctionVariable) != nullptr) return lockstep::RunRankProcess();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
