#include "bench/compare.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/compare_contest.h"
#include "bench/compare_json.h"
#include "bench/compare_own.h"
#include "bench/compare_plot.h"
#include "bench/compare_result.h"
#include "bench/compare_table.h"
#include "bench/limits/pingpong.h"
#include "bench/machine.h"
#include "bench/output_file.h"
#include "bench/peers/player.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

absl::Status CheckOptions(const CompareOptions& options) {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  if (options.ranks < 2 || options.ranks > LOCKSTEP_PLAYER_RANKS_MAX) {
    return invalid(absl::StrCat(options.ranks, " ranks cannot be compared; 2 to ", LOCKSTEP_PLAYER_RANKS_MAX, " can"));
  }
  if (options.rounds < 1) return invalid("there must be a round at least");
  if (options.round_time.count() < 1) return invalid("a round takes a millisecond at least");
  if (options.patience.count() < 1 || options.patience >= std::chrono::seconds(LOCKSTEP_PLAYER_PATIENCE_S)) {
    return invalid(absl::StrCat("patience is below ", LOCKSTEP_PLAYER_PATIENCE_S, " s"));
  }
  if (options.round_time > options.patience / 2) return invalid("a round must be shorter than half the patience");
  if (options.sizes.empty()) return invalid("there is no size");
  for (const int64_t bytes : options.sizes) {
    if (bytes < 4 || bytes % 4 != 0 || bytes / 4 > INT_MAX) {
      return invalid(absl::StrCat(bytes, " bytes are no vector of 1 to ", INT_MAX, " floats"));
    }
  }
  for (const std::string& transport : options.transports) {
    if (transport != "shm" && transport != "tcp" && transport != "ofi") {
      return invalid(absl::StrCat("no transport '", transport, "'; known are: shm, tcp, ofi"));
    }
  }
  return options.transports.empty() ? invalid("there is no transport") : absl::OkStatus();
}

// A folder in TMPDIR, removed with all that is in it.
class ScratchFolder {
 public:
  static absl::StatusOr<ScratchFolder> Create() {
    const char* const base = getenv("TMPDIR");
    std::string path = absl::StrCat(base != nullptr ? base : "/tmp", "/compare-XXXXXX");
    if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, absl::StrCat("make folder ", path));
    return ScratchFolder(std::move(path));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;

  const std::string& path() const { return path_; }
  absl::StatusOr<std::string> MakeInside(const std::string& name) const {
    const std::string folder = absl::StrCat(path_, "/", name);
    std::error_code error;
    std::filesystem::create_directory(folder, error);
    if (error) return ErrnoStatus(error.value(), absl::StrCat("make folder ", folder));
    return folder;
  }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The folder "bench" with what was built and is read at run time: beside the program as Bazel lays it out, or where a
// test is started.
absl::StatusOr<std::string> FindBench() {
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  if (length < 0) return ErrnoStatus(errno, "read /proc/self/exe");
  const std::string beside = absl::StrCat(std::string(program, length), ".runfiles/lockstep/bench");
  for (const std::string& folder : {beside, std::filesystem::absolute("bench").string()}) {
    if (access((folder + "/compare_lockstep_player").c_str(), X_OK) == 0) return folder;
  }
  return absl::NotFoundError(absl::StrCat("no compare_lockstep_player in ", beside, " nor in bench here"));
}

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C ends the contest early and in order: players are ended, and what was measured is printed. The second one
// kills.
void EndEarlyOnInterrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

void Tell(const std::string& text) { std::fprintf(stderr, "compare: %s\n", text.c_str()); }

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Those that are there; the others are told about in `report`.
std::vector<Peer> FindPeers(const CompareOptions& options, const std::string& bench, const std::string& folder,
                            ComparisonReport* report) {
  std::vector<Peer> found;
  for (const PeerKind kind : options.peers) {
    Tell(absl::StrCat("looking for ", Name(kind)));
    absl::StatusOr<Peer> peer = FindPeer(kind, bench + "/peers", folder);
    if (peer.ok()) {
      report->facts.emplace_back(Name(kind), peer->version);
      found.push_back(*std::move(peer));
      continue;
    }
    const bool not_installed = absl::IsNotFound(peer.status());
    report->missing.push_back(absl::StrCat(Name(kind), not_installed ? " is not installed (" : " does not work (",
                                           std::string(peer.status().message()), ")",
                                           not_installed ? absl::StrCat(": ", InstallCommand(kind)) : ""));
  }
  return found;
}

std::vector<Contender> ContendersFor(const CompareOptions& options, const std::string& transport,
                                     const std::string& bench, const std::vector<Peer>& peers) {
  const OwnPlayers players = {bench + "/compare_lockstep_player", bench + "/compare_limit_player"};
  std::vector<Contender> contenders = LockstepContenders(players, transport);
  for (Contender& limit : LimitContenders(players, transport, options.ranks, options.congestion_control)) {
    contenders.push_back(std::move(limit));
  }
  if (transport == "ofi") return contenders;  // no peer is set up for it
  PeerSettings settings;
  settings.transport = transport;
  settings.ranks = options.ranks;
  settings.as_root = geteuid() == 0;
  settings.mpi_malloc = options.mpi_malloc;
  for (const Peer& peer : peers) {
    for (Contender& contender : PeerContenders(peer, settings)) contenders.push_back(std::move(contender));
  }
  return contenders;
}

bool LockstepWentThrough(const ContestResult& contest) {
  return std::all_of(contest.contenders.begin(), contest.contenders.end(), [](const ContenderResult& contender) {
    return contender.kind != ContenderKind::kLockstep || contender.dropped.empty();
  });
}

// Returns the exit status.
absl::StatusOr<int> Compare(const CompareOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string bench, FindBench());
  LOCKSTEP_ASSIGN_OR_RETURN(const ScratchFolder scratch, ScratchFolder::Create());
  ComparisonReport report;
  report.facts = MachineFacts();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string players, scratch.MakeInside("players"));
  const std::vector<Peer> peers = FindPeers(options, bench, players, &report);
  report.facts.emplace_back(
      "ranks", absl::StrCat(options.ranks, options.pin ? ", each kept on one core, by turns" : ", not pinned"));
  report.facts.emplace_back(
      "rounds", absl::StrCat(options.rounds, " of ", options.round_time.count(), " ms for each contender in turn"));
  Print(ComparisonFactsText(report.facts));
  if (std::count(options.transports.begin(), options.transports.end(), "ofi") > 0) {
    const absl::Status pingpong = Pingpong::Installed();
    if (!pingpong.ok()) report.missing.emplace_back(pingpong.message());
  }
  for (const std::string& missing : report.missing) Print(absl::StrCat("# ", missing, "\n"));
  int exit_status = 0;
  for (const std::string& transport : options.transports) {
    ContestOptions contest;
    contest.transport = transport;
    contest.ranks = options.ranks;
    contest.pin = options.pin;
    contest.sizes = options.sizes;
    contest.rounds = options.rounds;
    contest.round_time = options.round_time;
    contest.patience = options.patience;
    LOCKSTEP_ASSIGN_OR_RETURN(contest.folder, scratch.MakeInside(transport));
    contest.on_progress = [&transport](const std::string& text) { Tell(absl::StrCat(transport, ": ", text)); };
    contest.interrupted = [] { return interrupted != 0; };
    report.contests.push_back(RunContest(contest, ContendersFor(options, transport, bench, peers)));
    Print(ContestTable(report.contests.back()));
    if (!LockstepWentThrough(report.contests.back())) exit_status = kFailed;
    if (interrupted != 0) {
      Tell("ended early by a signal");
      exit_status = kFailed;
      break;
    }
  }
  if (!options.json.empty()) LOCKSTEP_RETURN_IF_ERROR(WriteFile(options.json, ComparisonJson(report)));
  if (!options.plot.empty()) LOCKSTEP_RETURN_IF_ERROR(WriteFile(options.plot, ComparisonPlot(report.contests)));
  return exit_status;
}

}  // namespace

int RunCompare(const CompareOptions& options) {
  if (const absl::Status usable = CheckOptions(options); !usable.ok()) {
    Tell(std::string(usable.message()));
    return kWrongUsage;
  }
  EndEarlyOnInterrupt();
  CompareOptions sorted = options;
  std::sort(sorted.sizes.begin(), sorted.sizes.end());
  const absl::StatusOr<int> exit_status = Compare(sorted);
  if (exit_status.ok()) return *exit_status;
  Tell(std::string(exit_status.status().message()));
  return kFailed;
}

}  // namespace bench
}  // namespace lockstep
