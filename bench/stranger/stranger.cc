// A world that trains while strangers besiege its ports. See --help.
//
// Rank 0 starts one process of strangers, who know nothing but the ranks' process IDs, and records what ranks say to each other while the
// world forms, for them to change and to repeat (root alone may). The ranks step without them, with them, and without them again; every
// result is checked. In the end the ranks count what their logs say they have turned away.

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "launch/spawn.h"
#include "tests/stranger.h"
#include "tests/stranger_captures.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"

ABSL_FLAG(int, nproc, 2, "ranks, started on this machine");
ABSL_FLAG(std::string, transport, "tcp", "what Lockstep goes over: auto, shm, tcp or ofi");
ABSL_FLAG(int64_t, connections, 1'000'000, "that strangers make in all");
ABSL_FLAG(int64_t, at_once, 256, "of them");
ABSL_FLAG(std::string, size, "1M", "of the vector that each step all-reduces; K, M and G are powers of 1024");
ABSL_FLAG(int, seconds, 5, "how long the ranks step without strangers, before and after");
ABSL_FLAG(uint32_t, seed, 1, "of what strangers do at random");
ABSL_FLAG(std::string, json, "", "also write the results to this file");
ABSL_FLAG(std::vector<std::string>, besiege, {},
          "processes, with commas between: this one is the strangers (started so by rank 0)");

namespace lockstep {
namespace bench {
namespace {

// Of what came in the end, when each kind has been silent for a while: its line in the log then counts those that were left out.
constexpr std::chrono::milliseconds kLinePause{1'500};
constexpr int64_t kLastVisits = 100;

struct Options {
  int ranks = 2;
  int64_t elements = 0;
};

absl::StatusOr<Options> OptionsFromFlags() {
  Options options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes, ParseByteCount(absl::GetFlag(FLAGS_size)));
  options.elements = bytes / static_cast<int64_t>(sizeof(float));
  if (options.ranks < 2 || options.elements < 1 || absl::GetFlag(FLAGS_connections) < 1 ||
      absl::GetFlag(FLAGS_at_once) < 1 || absl::GetFlag(FLAGS_seconds) < 1) {
    return absl::InvalidArgumentError("there must be two ranks, an element, a connection and a second");
  }
  return options;
}

// ---- The strangers' process

// Captures come as the size of each, a blank, and its bytes.
std::vector<std::string> ReadCaptures(int fd) {
  std::string text;
  char bytes[65'536];
  for (ssize_t count; (count = pread(fd, bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0;) {
    text.append(bytes, static_cast<size_t>(count));
  }
  std::vector<std::string> captures;
  for (absl::string_view rest = text; !rest.empty();) {
    const size_t blank = rest.find(' ');
    size_t size = 0;
    if (blank == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, blank), &size)) break;
    captures.emplace_back(rest.substr(blank + 1, size));
    rest.remove_prefix(std::min(rest.size(), blank + 1 + size));
  }
  return captures;
}

// Prints what came of it as JSON.
int Besiege(const std::vector<std::string>& processes) {
  std::vector<pid_t> pids;
  for (const std::string& text : processes) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(text, &pid)) return Complain(absl::InvalidArgumentError(text), kWrongUsage);
    pids.push_back(pid);
  }
  RaidOptions options;
  options.loot.keys = {KeyOfAnotherJob()};
  options.loot.captures = ReadCaptures(STDIN_FILENO);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.at_once = static_cast<size_t>(absl::GetFlag(FLAGS_at_once));
  const auto find = [&] { return DoorsOf(pids); };
  const auto begin = std::chrono::steady_clock::now();
  Tally tally = Raid(find, absl::GetFlag(FLAGS_connections), options);
  const double seconds = SecondsSince(begin);
  const int64_t most = tally.total();
  (void)poll(nullptr, 0, static_cast<int>(kLinePause.count()));
  options.patience = std::chrono::seconds(6);
  tally.Add(Raid(find, kLastVisits, options));
  Json visits = Json::object();
  for (size_t i = 0; i < tally.visits.size(); ++i) visits[Name(static_cast<Attack>(i))] = tally.visits[i];
  std::vector<std::string> doors;
  for (const Door& door : find()) doors.push_back(door.name);
  const Json result = {{"doors", doors},
                       {"captures", options.loot.captures.size()},
                       {"connections", tally.total()},
                       {"per_second", static_cast<double>(most) / seconds},
                       {"turned_away", tally.turned_away},
                       {"left", tally.left},
                       {"unreachable", tally.unreachable},
                       {"admitted", tally.admitted},
                       {"visits", visits}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

// The process, from rank 0's side.
class Strangers {
 public:
  static absl::StatusOr<Strangers> Start(const std::vector<pid_t>& processes,
                                         const std::vector<std::string>& captures) {
    Strangers strangers;
    // Not of UniqueFd, which a forked child closes. They stay open until this process ends.
    strangers.output_ = memfd_create("strangers", MFD_CLOEXEC);
    const int input = memfd_create("captures", MFD_CLOEXEC);
    if (strangers.output_ < 0 || input < 0) return ErrnoStatus(errno, "memfd_create");
    std::string text;
    for (const std::string& capture : captures) absl::StrAppend(&text, capture.size(), " ", capture);
    if (write(input, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return ErrnoStatus(errno, "write captures");
    }
    SpawnOptions spawn;
    spawn.path = "/proc/self/exe";
    spawn.arguments = {"strangers", absl::StrCat("--besiege=", absl::StrJoin(processes, ",")),
                       absl::StrCat("--connections=", absl::GetFlag(FLAGS_connections)),
                       absl::StrCat("--at_once=", absl::GetFlag(FLAGS_at_once)),
                       absl::StrCat("--seed=", absl::GetFlag(FLAGS_seed))};
    spawn.environment = EnvironmentWith({});
    spawn.stdin_fd = input;
    spawn.stdout_fd = strangers.output_;
    spawn.stderr_fd = STDERR_FILENO;
    LOCKSTEP_ASSIGN_OR_RETURN(strangers.pid_, Spawn(spawn));
    return strangers;
  }

  // Null while they are at it.
  absl::StatusOr<Json> Result() {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == 0) return Json();
    if (ended < 0) return ErrnoStatus(errno, "wait for the strangers");
    if (status != 0) return absl::InternalError(absl::StrCat("the strangers' process ", DescribeWaitStatus(status)));
    std::string text(1 << 16, '\0');
    const ssize_t bytes = pread(output_, &text[0], text.size(), 0);
    text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
    return Json::parse(text);
  }

 private:
  pid_t pid_ = 0;
  int output_ = -1;
};

// ---- A rank

// What this process writes to stderr from now on goes to a file in memory.
class OwnLog {
 public:
  OwnLog() : file_(memfd_create("log", MFD_CLOEXEC)), stderr_(dup(STDERR_FILENO)) {
    (void)dup2(file_.get(), STDERR_FILENO);
  }
  ~OwnLog() { (void)dup2(stderr_.get(), STDERR_FILENO); }

  std::string Read() const {
    std::string text;
    char bytes[65'536];
    for (ssize_t count; (count = pread(file_.get(), bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0;) {
      text.append(bytes, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  const UniqueFd file_;
  const UniqueFd stderr_;
};

class Steps {
 public:
  Steps(const ProcessGroup& group, int64_t elements) : group_(group), data_(static_cast<size_t>(elements)) {}

  // Steps until `over`, which rank 0 asks about, and that at every step. Returns steps per second.
  absl::StatusOr<double> Until(const std::function<absl::StatusOr<bool>()>& over) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t steps = 1;; ++steps) {
      std::fill(data_.begin(), data_.end(), 1.0f);
      bool done = false;
      if (group_.leads()) {
        LOCKSTEP_ASSIGN_OR_RETURN(done, over());
      }
      data_[0] = done ? 0.0f : 1.0f;
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = DType::kF32;
      request.op = ReduceOp::kSum;
      request.count = data_.size();
      request.input = request.output = data_.data();
      LOCKSTEP_RETURN_IF_ERROR(group_.communicator()->Run(request));
      for (size_t i = 1; i < data_.size(); ++i) {
        if (data_[i] != static_cast<float>(group_.size())) return absl::DataLossError("a sum is wrong");
      }
      // Rank 0 alone adds less.
      if (data_[0] != static_cast<float>(group_.size())) return static_cast<double>(steps) / SecondsSince(begin);
    }
  }

  absl::StatusOr<double> For(std::chrono::seconds time) {
    const Deadline deadline = Deadline::After(time);
    return Until([&]() -> absl::StatusOr<bool> { return deadline.passed(); });
  }

 private:
  const ProcessGroup& group_;
  std::vector<float> data_;
};

absl::Status RunRank(const Options& options) {
  const OwnLog own_log;
  absl::StatusOr<Wiretap> tap = Wiretap::Start();
  WorldOptions world_options;
  world_options.transport = absl::GetFlag(FLAGS_transport);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinWorld(world_options, options.ranks, /*pin=*/false));
  const ProcessGroup group(world->communicator());
  Steps steps(group, options.elements);
  LOCKSTEP_RETURN_IF_ERROR(group.Barrier());
  std::vector<pid_t> processes;
  for (int rank = 0; rank < group.size(); ++rank) {
    LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t pid,
                              group.Sum(group.rank() == Rank(rank) ? static_cast<uint64_t>(getpid()) : 0));
    processes.push_back(static_cast<pid_t>(pid));
  }
  std::vector<std::string> captures;
  if (tap.ok() && group.leads()) {
    std::set<uint16_t> ports;
    for (const Door& door : DoorsOf(processes)) {
      if (door.family != AF_UNIX) ports.insert(SocketAddress::Parse(door.name)->port());
    }
    captures = tap->Take(ports);
  }
  tap = absl::CancelledError();

  const std::chrono::seconds quiet(absl::GetFlag(FLAGS_seconds));
  LOCKSTEP_ASSIGN_OR_RETURN(const double before, steps.For(quiet));
  absl::optional<Strangers> strangers;
  if (group.leads()) {
    LOCKSTEP_ASSIGN_OR_RETURN(strangers, Strangers::Start(processes, captures));
  }
  Json result;
  LOCKSTEP_ASSIGN_OR_RETURN(const double besieged, steps.Until([&]() -> absl::StatusOr<bool> {
    LOCKSTEP_ASSIGN_OR_RETURN(result, strangers->Result());
    return !result.is_null();
  }));
  LOCKSTEP_ASSIGN_OR_RETURN(const double after, steps.For(quiet));

  const std::string log = own_log.Read();
  std::map<Refusal, int64_t> own = RefusalsIn(log);
  Json refused = Json::object();
  uint64_t refusals = 0;
  for (int kind = 0; kind < static_cast<int>(Refusal::kCount); ++kind) {
    LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t count, group.Sum(static_cast<uint64_t>(own[static_cast<Refusal>(kind)])));
    if (count > 0) refused[Text(static_cast<Refusal>(kind))] = count;
    refusals += count;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t lines,
                            group.Sum(static_cast<uint64_t>(std::count(log.begin(), log.end(), '\n'))));
  Report report(group.leads() ? stdout : nullptr);
  report.AddFacts(MachineFacts());
  report.AddFacts({{"transport", group.Routes()}});
  report.Begin("#\n# a world that strangers besiege\n", {{12, "connections", "", "/connections"},
                                                         {9, "", "(1/s)", "/per_second", 0},
                                                         {12, "turned away", "", "/turned_away"},
                                                         {9, "left", "", "/left"},
                                                         {12, "unreachable", "", "/unreachable"},
                                                         {9, "admitted", "", "/admitted_count"},
                                                         {10, "refusals", "counted", "/refusals"},
                                                         {9, "lines", "logged", "/log_lines"},
                                                         {12, "steps before", "(1/s)", "/steps_before", 1},
                                                         {12, "besieged", "(1/s)", "/steps_besieged", 1},
                                                         {12, "after", "(1/s)", "/steps_after", 1}});
  if (!group.leads()) return absl::OkStatus();
  result["admitted_count"] = result["admitted"].size();
  result["refusals"] = refusals;
  result["refused"] = refused;
  result["log_lines"] = lines;
  result["steps_before"] = before;
  result["steps_besieged"] = besieged;
  result["steps_after"] = after;
  report.AddRow(result);
  report.Print("#\n# refused, as the ranks counted:\n");
  for (const auto& [text, count] : refused.items()) report.Print(absl::StrCat("#   ", text, ": ", count.dump(), "\n"));
  LOCKSTEP_RETURN_IF_ERROR(report.Write(absl::GetFlag(FLAGS_json)));
  return result["admitted"].empty() ? absl::OkStatus()
                                    : absl::PermissionDeniedError(result["admitted"][0].get<std::string>());
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) {
  // The strangers' process has the flags of rank 0, and nothing of its environment matters to it.
  for (char** word = argv; *word != nullptr; ++word) {
    if (absl::StartsWith(*word, "--besiege=")) {
      lockstep::bench::ParseFlags(argc, argv, "strangers");
      return lockstep::bench::Besiege(absl::GetFlag(FLAGS_besiege));
    }
  }
  return lockstep::bench::RunBench(argc, argv,
                                   "trains on ranks that it starts on this machine while strangers besiege their "
                                   "ports: counts who was turned away and "
                                   "compares steps per second",
                                   &lockstep::bench::OptionsFromFlags, &lockstep::bench::RunRank);
}
