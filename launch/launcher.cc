#include "launch/launcher.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "launch/culprit.h"
#include "launch/held_port.h"
#include "launch/job_secret.h"
#include "launch/output_relay.h"
#include "launch/rank_report.h"
#include "launch/signal_inbox.h"
#include "launch/spawn.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

constexpr int kOthersMax = 16;

static_assert(kLauncherRanksMax <= ProcessGuardian::kGroupsMax, "every rank's group is guarded");

// A rank's process is its group's leader. The group outlives it while children of the rank live on; the kernel does not
// give the number away before the last of them was reaped, so it may be signalled until then.
struct RankProcess {
  pid_t pid = 0;
  bool ended = false;
  bool group_gone = false;
  int wait_status = 0;
  bool ended_by_launcher = false;           // SIGTERM was sent to the group before it ended
  int64_t ended_ns = 0;                     // Unix time, when its end was noticed
  bool killed = false;                      // SIGKILL was sent to the group
  Deadline kill_at = Deadline::Infinite();  // set when SIGTERM is sent to the group
};

// Makes this process the parent of its descendants' orphans while it lives, so that they can be waited for.
class SubreaperScope {
 public:
  SubreaperScope() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~SubreaperScope() { prctl(PR_SET_CHILD_SUBREAPER, before_); }

 private:
  int before_ = 0;
};

class Job {
 public:
  Job(const LaunchOptions& options, std::unique_ptr<SignalInbox> inbox, std::unique_ptr<ProcessGuardian> guardian)
      : options_(options),
        out_of_memory_before_(OutOfMemoryKills()),
        inbox_(std::move(inbox)),
        guardian_(std::move(guardian)),
        relay_(options.stdout_fd, options.stderr_fd) {}
  ~Job();

  // `server` is null when somebody else serves the store.
  absl::Status Start(const std::string& path, const std::string& job_id, JobSecret secret,
                     std::unique_ptr<TcpStoreServer> server);
  void Run();
  LaunchResult Result() const;

 private:
  absl::Status StartRank(int rank, SpawnOptions spawn);
  // Waits for signals, output, or the next deadline, and deals with them.
  void Iterate();
  void HandleSignal(const SignalInbox::Received& received);
  // Collects children that ended. `hint` is the one that the signal named: the kernel merges SIGCHLDs that come while
  // one is pending and keeps the first, so among several it is most likely the one that ended first.
  void Reap(pid_t hint);
  // Ends the job if a rank has failed and the culprit, as far as it is known, has ended or has had blame_ms to do so.
  void EndIfFailed();
  // The facts about each rank. `reports` are theirs, by rank.
  std::vector<RankOutcome> Outcomes(const std::vector<absl::optional<RankReport>>& reports) const;
  std::vector<absl::optional<RankReport>> Reports() const;
  std::string Describe(int rank, const absl::optional<RankReport>& report) const;
  void SignalGroups(int signal);
  // SIGTERM now, SIGKILL after the grace period.
  void EndGroup(RankProcess* rank);
  void EndAll();
  bool AllEnded() const;
  bool AllGone() const;

  const LaunchOptions& options_;
  const uint64_t out_of_memory_before_;
  SubreaperScope subreaper_;
  const std::unique_ptr<SignalInbox> inbox_;
  const std::unique_ptr<ProcessGuardian> guardian_;
  JobSecret secret_;
  std::unique_ptr<TcpStoreServer> server_;
  HeldPort master_port_;
  OutputRelay relay_;
  std::vector<RankProcess> ranks_;
  std::vector<pollfd> poll_fds_;
  absl::optional<ReportFolder> reports_;              // none if it could not be made
  absl::optional<int> first_failed_;                  // whose end was noticed first
  Deadline wait_for_culprit_ = Deadline::Infinite();  // set by the first failure
  bool ending_ = false;                               // SIGTERM was sent to all ranks
  int interrupts_ = 0;
  int passed_on_before_failure_ = 0;  // the last ending signal from outside, if one came before the first failure
};

Job::~Job() {
  if (reports_.has_value() && !first_failed_.has_value()) reports_->Remove();
  for (RankProcess& rank : ranks_) {
    if (rank.group_gone) continue;
    kill(-rank.pid, SIGKILL);
    while (waitpid(-rank.pid, nullptr, 0) >= 0 || errno == EINTR) {
    }
  }
}

// OMP_NUM_THREADS for each rank; 0 if the environment stays as it is. OpenMP's own default is every core for every rank.
int ThreadsPerRank(const LaunchOptions& options) {
  if (options.threads > 0) {
    LOCKSTEP_LOG(kInfo) << "threads per rank: " << options.threads << " (--threads)";
    return options.threads;
  }
  // PyTorch reads MKL_NUM_THREADS only if OMP_NUM_THREADS is not set. Other libraries prefer their own variables.
  for (const char* variable : {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}) {
    const absl::optional<std::string> given = GetEnv(variable);
    if (!given.has_value()) continue;
    LOCKSTEP_LOG(kInfo) << "threads per rank: as " << variable << "=" << *given << " says";
    return 0;
  }
  const int cores = UsableCores();
  const int threads = std::max(1, cores / options.world_size);
  LOCKSTEP_LOG(kInfo) << "threads per rank: " << threads << " (OMP_NUM_THREADS), since " << options.world_size
                      << (options.world_size == 1 ? " rank has " : " ranks share ") << cores
                      << (cores == 1 ? " usable core" : " usable cores")
                      << "; --threads or OMP_NUM_THREADS sets another number";
  return threads;
}

// Variables that torchrun sets for its workers. This process may be one of those; our ranks are not. With TORCHELASTIC_USE_AGENT_STORE,
// for example, rank 0 would not serve MASTER_PORT.
constexpr absl::string_view kOfTorchrun[] = {"GROUP_RANK",
                                             "GROUP_WORLD_SIZE",
                                             "ROLE_NAME",
                                             "ROLE_RANK",
                                             "ROLE_WORLD_SIZE",
                                             "TORCHELASTIC_ERROR_FILE",
                                             "TORCHELASTIC_MAX_RESTARTS",
                                             "TORCHELASTIC_RESTART_COUNT",
                                             "TORCHELASTIC_RUN_ID",
                                             "TORCHELASTIC_SIGNALS_TO_HANDLE",
                                             "TORCHELASTIC_USE_AGENT_STORE"};

// For errors that are not about the program, whose codes the launcher's exit status tells apart.
template <typename T>
absl::StatusOr<T> NotAboutTheProgram(absl::StatusOr<T> result) {
  if (result.ok() || absl::IsInvalidArgument(result.status())) return result;
  return absl::UnavailableError(result.status().message());
}

absl::Status Job::Start(const std::string& path, const std::string& job_id, JobSecret secret,
                        std::unique_ptr<TcpStoreServer> server) {
  secret_ = std::move(secret);
  server_ = std::move(server);
  LOCKSTEP_ASSIGN_OR_RETURN(master_port_, NotAboutTheProgram(HoldPort()));
  const int threads = ThreadsPerRank(options_);
  absl::StatusOr<ReportFolder> reports = ReportFolder::Create();
  if (reports.ok()) {
    reports_ = *std::move(reports);
  } else {
    LOCKSTEP_LOG(kWarning) << reports.status().message()
                           << ": ranks cannot report why they end; LOCKSTEP_REPORT_FOLDER names another place";
  }
  const std::string store =
      server_ != nullptr ? absl::StrCat("tcp://", server_->address().ToString()) : options_.store_url;
  const std::string served = server_ != nullptr ? "1" : "0";
  const std::string size = absl::StrCat(options_.world_size);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    std::vector<std::pair<std::string, std::string>> variables = {
        {"LOCKSTEP_RANK", absl::StrCat(rank)},
        {"LOCKSTEP_WORLD_SIZE", size},
        {"LOCKSTEP_LOCAL_RANK", absl::StrCat(rank)},
        {"LOCKSTEP_LOCAL_WORLD_SIZE", size},
        {"LOCKSTEP_STORE", store},
        {"LOCKSTEP_STORE_SERVED", served},
        {"LOCKSTEP_JOB_ID", job_id},
        // As torchrun says it, for torch.distributed and what builds on it.
        {"RANK", absl::StrCat(rank)},
        {"WORLD_SIZE", size},
        {"LOCAL_RANK", absl::StrCat(rank)},
        {"LOCAL_WORLD_SIZE", size},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", absl::StrCat(master_port_.port)},
    };
    if (threads > 0) variables.emplace_back("OMP_NUM_THREADS", absl::StrCat(threads));
    if (reports_.has_value()) {
      variables.emplace_back("LOCKSTEP_REPORT_FOLDER", reports_->path());
      variables.emplace_back("TORCHELASTIC_ERROR_FILE", reports_->ErrorFile(rank));
    }
    if (!secret_.path.empty()) variables.emplace_back("LOCKSTEP_SECRET_FILE", secret_.path);
    SpawnOptions spawn;
    spawn.path = path;
    spawn.arguments = options_.command;
    spawn.environment = EnvironmentWith(variables, kOfTorchrun);
    spawn.signal_mask = inbox_->mask_before();
    spawn.in_child = &ProcessGuardian::WatchCaller;
    spawn.in_child_context = guardian_.get();
    LOCKSTEP_RETURN_IF_ERROR(Annotate(StartRank(rank, std::move(spawn)), absl::StrCat("rank ", rank)));
  }
  return absl::OkStatus();
}

absl::Status Job::StartRank(int rank, SpawnOptions spawn) {
  int write_ends[2] = {-1, -1};
  const auto close_write_ends = absl::MakeCleanup([&write_ends] {
    for (int fd : write_ends) {
      if (fd >= 0) close(fd);
    }
  });
  if (options_.foreground_rank == rank) {
    spawn.stdin_fd = isatty(0) ? -1 : 0;
    spawn.stdout_fd = options_.stdout_fd;
    spawn.stderr_fd = options_.stderr_fd;
    spawn.ignore_terminal_stop = true;
  } else {
    const std::string prefix = absl::StrCat("[", rank, "] ");
    LOCKSTEP_ASSIGN_OR_RETURN(write_ends[0], relay_.AddStream(prefix, OutputRelay::Sink::kStdout));
    LOCKSTEP_ASSIGN_OR_RETURN(write_ends[1], relay_.AddStream(prefix, OutputRelay::Sink::kStderr));
    spawn.stdout_fd = write_ends[0];
    spawn.stderr_fd = write_ends[1];
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const pid_t pid, Spawn(spawn));
  RankProcess process;
  process.pid = pid;
  ranks_.push_back(process);
  return absl::OkStatus();
}

void Job::Run() {
  while (!AllGone()) Iterate();
  relay_.Finish();
  while (relay_.pending()) Iterate();
}

void Job::Iterate() {
  Deadline wake = Deadline::Infinite();
  for (const RankProcess& rank : ranks_) {
    if (!rank.group_gone && !rank.killed) wake = Deadline::Earlier(wake, rank.kill_at);
  }
  if (!ending_) wake = Deadline::Earlier(wake, wait_for_culprit_);
  poll_fds_.assign(1, {inbox_->fd(), POLLIN, 0});
  relay_.PollFds(&poll_fds_);
  if (poll(poll_fds_.data(), poll_fds_.size(), wake.remaining_ms()) < 0) return;  // EINTR, or ENOMEM to be tried again

  relay_.HandleEvents(absl::MakeConstSpan(poll_fds_).subspan(1));
  while (absl::optional<SignalInbox::Received> received = inbox_->Take()) HandleSignal(*received);
  EndIfFailed();
  for (RankProcess& rank : ranks_) {
    if (rank.group_gone || rank.killed || !rank.kill_at.passed()) continue;
    kill(-rank.pid, SIGKILL);
    rank.killed = true;
  }
}

void Job::HandleSignal(const SignalInbox::Received& received) {
  switch (received.signal) {
    case SIGCHLD:
      Reap(received.sender);
      return;
    case SIGUSR1:
    case SIGUSR2:
      // To the ranks alone: their helpers seldom expect these, and would die.
      for (const RankProcess& rank : ranks_) {
        if (!rank.ended) kill(rank.pid, received.signal);
      }
      return;
    case SIGTSTP:
      SignalGroups(SIGTSTP);
      raise(SIGSTOP);  // to this thread: returns when somebody has continued us
      SignalGroups(SIGCONT);
      return;
    default:
      if (received.signal == SIGINT) ++interrupts_;
      if (!first_failed_.has_value()) passed_on_before_failure_ = received.signal;
      SignalGroups(received.signal);
      if (AllEnded()) {
        // Only leftovers or a reader that does not read are being waited for.
        for (RankProcess& rank : ranks_) rank.kill_at = Deadline::Now();
        relay_.Discard();
      } else if (interrupts_ >= 2) {
        ending_ = true;
        EndAll();
      }
  }
}

void Job::Reap(pid_t hint) {
  std::vector<int> ended;
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (ranks_[rank].pid != pid || ranks_[rank].ended) continue;
      ranks_[rank].ended = true;
      ranks_[rank].wait_status = status;
      ranks_[rank].ended_by_launcher = !ranks_[rank].kill_at.infinite();
      ended.push_back(rank);
    }
  }
  // Of several that ended since the last look, one that was killed is a likelier cause than one that gave up.
  const auto order = [this, hint](int rank) {
    const RankProcess& process = ranks_[rank];
    return std::make_tuple(process.pid != hint, !WIFSIGNALED(process.wait_status), rank);
  };
  std::sort(ended.begin(), ended.end(), [&order](int a, int b) { return order(a) < order(b); });
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  int64_t now_ns = now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  for (int rank : ended) {
    ranks_[rank].ended_ns = now_ns++;
    if (ranks_[rank].wait_status == 0 || first_failed_.has_value()) continue;
    first_failed_ = rank;
    wait_for_culprit_ = Deadline::AfterMs(options_.blame_ms);
  }
  EndIfFailed();
  for (RankProcess& rank : ranks_) {
    if (!rank.ended || rank.group_gone) continue;
    siginfo_t unused;
    if (waitid(P_PGID, rank.pid, &unused, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) {
      rank.group_gone = true;
      guardian_->Forget(rank.pid);
    }
  }
  // What the ranks left behind. Once more if the group was told before: a child that was just being started may have
  // missed it.
  for (int rank : ended) {
    if (ranks_[rank].group_gone) continue;
    EndGroup(&ranks_[rank]);
    kill(-ranks_[rank].pid, SIGTERM);
  }
}

std::vector<absl::optional<RankReport>> Job::Reports() const {
  std::vector<absl::optional<RankReport>> reports(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size() && reports_.has_value(); ++rank) {
    absl::optional<RankReport>& report = reports[rank];
    report = reports_->Read(static_cast<int>(rank), options_.world_size);
    const RankProcess& process = ranks_[rank];
    const bool failed = process.ended && process.wait_status != 0 && !process.ended_by_launcher;
    // A rank has not failed if it continues without a process that it had started and that wrote this report.
    if (report.has_value() && report->pid > 0 && report->pid != process.pid && !failed &&
        kill(static_cast<pid_t>(report->pid), 0) != 0) {
      report.reset();
    }
  }
  return reports;
}

std::vector<RankOutcome> Job::Outcomes(const std::vector<absl::optional<RankReport>>& reports) const {
  std::vector<RankOutcome> outcomes;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankProcess& process = ranks_[rank];
    const absl::optional<RankReport>& report = reports[rank];
    RankOutcome outcome;
    // A rank that we had to end was still running when the others failed.
    outcome.ended = process.ended && !process.ended_by_launcher;
    outcome.by_signal = outcome.ended && WIFSIGNALED(process.wait_status) && passed_on_before_failure_ == 0;
    outcome.failed = (outcome.ended && process.wait_status != 0) || (report.has_value() && !report->traceback.empty());
    outcome.time_ns = report.has_value() ? report->time_ns : process.ended_ns;
    if (report.has_value()) outcome.blames = report->blames;
    outcomes.push_back(outcome);
  }
  return outcomes;
}

void Job::EndIfFailed() {
  if (!first_failed_.has_value() || ending_) return;
  const absl::optional<int> culprit = FindCulprit(Outcomes(Reports()));
  if (culprit.has_value() && !ranks_[*culprit].ended && !wait_for_culprit_.passed()) return;
  ending_ = true;
  EndAll();
}

void Job::SignalGroups(int signal) {
  for (const RankProcess& rank : ranks_) {
    if (!rank.group_gone) kill(-rank.pid, signal);
  }
}

void Job::EndGroup(RankProcess* rank) {
  if (rank->group_gone || !rank->kill_at.infinite()) return;
  rank->kill_at = Deadline::AfterMs(options_.grace_ms);
  kill(-rank->pid, SIGTERM);
  kill(-rank->pid, SIGCONT);  // a stopped process would not notice
}

void Job::EndAll() {
  for (RankProcess& rank : ranks_) EndGroup(&rank);
}

bool Job::AllEnded() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.ended; });
}

bool Job::AllGone() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) { return rank.group_gone; });
}

std::string Job::Describe(int rank, const absl::optional<RankReport>& report) const {
  const RankProcess& process = ranks_[rank];
  std::string text =
      absl::StrCat("rank ", rank, " (pid ", process.pid, ") ",
                   process.ended_by_launcher ? "was ended by the launcher" : DescribeWaitStatus(process.wait_status));
  if (report.has_value()) absl::StrAppend(&text, ": ", report->message);
  return text;
}

LaunchResult Job::Result() const {
  LaunchResult result;
  for (const RankProcess& rank : ranks_) result.ranks.push_back(RankEnd{rank.pid, rank.wait_status});
  if (!first_failed_.has_value()) {
    if (relay_.status().ok()) return result;
    result.exit_status = 1;
    result.report = std::string(relay_.status().message());
    return result;
  }
  const std::vector<absl::optional<RankReport>> reports = Reports();
  result.first_failed = FindCulprit(Outcomes(reports)).value_or(*first_failed_);
  const RankProcess& culprit = ranks_[*result.first_failed];
  const absl::optional<RankReport>& reason = reports[*result.first_failed];

  int others = 0;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank == *result.first_failed || ranks_[rank].wait_status == 0) continue;
    if (++others <= kOthersMax) result.others.push_back(Describe(rank, reports[rank]));
  }
  if (others > kOthersMax)
    result.others.push_back(absl::StrCat(others - kOthersMax, " more ranks failed or were ended"));
  if (reports_.has_value() && !reports_->RemoveIfEmpty()) {
    result.others.push_back(
        absl::StrCat("the reports of the ranks, with tracebacks and flight records, are in ", reports_->path()));
  }

  const bool by_itself = culprit.wait_status != 0 && !culprit.ended_by_launcher;
  const int status = by_itself ? culprit.wait_status : ranks_[*first_failed_].wait_status;
  result.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  const bool traced = reason.has_value() && !reason->traceback.empty();
  result.report = Describe(*result.first_failed, traced ? absl::nullopt : reason);
  if (culprit.ended_by_launcher && *result.first_failed != *first_failed_ && !traced) {
    absl::StrAppend(&result.report, ": rank ", *first_failed_, " failed because of it");
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && OutOfMemoryKills() > out_of_memory_before_) {
    absl::StrAppend(&result.report, ": its control group was out of memory");
  }
  if (passed_on_before_failure_ != 0) {
    absl::StrAppend(&result.report, ", after SIG", sigabbrev_np(passed_on_before_failure_),
                    " was passed on to all ranks");
  }
  if (!relay_.status().ok()) absl::StrAppend(&result.report, "; ", relay_.status().message());
  if (traced) {
    LinePrefixer prefixer(absl::StrCat("[", *result.first_failed, "] "));
    prefixer.Append(reason->traceback, &result.traceback);
    prefixer.Finish(&result.traceback);
  }
  return result;
}

absl::StatusOr<std::string> RandomJobId() {
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t number, RandomNumber());
  return absl::StrFormat("%016x", number);
}

// On the loopback interface: all ranks are on this host.
absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeStore(const Credentials& credentials) {
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, SocketAddress::Parse("127.0.0.1:0"));
  // Ranks could not reach a store on an interface that is down, and would wait for it.
  const absl::Status reached = StartConnect(address).status();
  if (absl::IsInternal(reached)) return reached;
  TcpStoreServer::Options options;
  options.credentials = credentials;
  return TcpStoreServer::Create(address, options);
}

absl::Status Validate(const LaunchOptions& options) {
  if (options.world_size < 1 || options.world_size > kLauncherRanksMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks is ", options.world_size, "; it must be 1 to ", kLauncherRanksMax));
  }
  if (options.command.empty()) return absl::InvalidArgumentError("no program to run");
  if (options.foreground_rank.has_value() &&
      (*options.foreground_rank < 0 || *options.foreground_rank >= options.world_size)) {
    return absl::InvalidArgumentError(absl::StrCat("the foreground rank is ", *options.foreground_rank,
                                                   "; it must be 0 to ", options.world_size - 1));
  }
  if (options.grace_ms < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the grace period is ", options.grace_ms, " ms; it cannot be negative"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(Validate(options));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string path, FindProgram(options.command[0]));
  std::string job_id = options.job_id;
  if (job_id.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(job_id, RandomJobId());
  }
  // The guardian first: a fork holds what is open at that moment.
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGuardian> guardian, ProcessGuardian::Start());
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<SignalInbox> inbox, SignalInbox::Open());
  Job job(options, std::move(inbox), std::move(guardian));
  const bool serves = options.store_url.empty();
  LOCKSTEP_ASSIGN_OR_RETURN(JobSecret secret, NotAboutTheProgram(MakeJobSecret(serves)));
  std::unique_ptr<TcpStoreServer> server;
  if (serves) {
    LOCKSTEP_ASSIGN_OR_RETURN(server, NotAboutTheProgram(ServeStore(secret.credentials)));
  }
  LOCKSTEP_RETURN_IF_ERROR(job.Start(path, job_id, std::move(secret), std::move(server)));
  job.Run();
  return job.Result();
}

}  // namespace lockstep
