// A job attacked by unauthenticated peers, in every phase of a world. See --help.
//
// Rank 0 starts one process of attackers. They know the process IDs of the ranks and of the launcher, which serves the store, and what
// ranks have sent while a first world formed, to change and to repeat (root alone may record that). The ranks then train, close their
// world and form another one, again and again, until the attackers have made their connections. Each phase goes on until so many of
// these were made in it: one rank is late to form, and leaves first. Every result is checked. Steps per second are compared with those of
// the time before and after. In the end the ranks count what their logs, and that of the store, say about peers turned away.

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "launch/spawn.h"
#include "tests/attack_writer.h"
#include "tests/attacks.h"
#include "tests/listening_sockets.h"
#include "tests/logged_refusals.h"
#include "tests/packet_capture.h"
#include "transport/secure/channel.h"

ABSL_FLAG(int, nproc, 2, "ranks, started on this machine");
ABSL_FLAG(std::string, transport, "tcp", "what Lockstep goes over: auto, shm, tcp or ofi");
ABSL_FLAG(int64_t, connections, 1'000'000, "that attackers make in all, at least");
ABSL_FLAG(int64_t, connections_per_phase, 1'000,
          "that they make at least at the store, at the coordinator and at the transport's listeners each before a "
          "world goes on");
ABSL_FLAG(int64_t, at_once, 256, "of them");
ABSL_FLAG(std::string, size, "1M", "of the vector that each step all-reduces; K, M and G are powers of 1024");
ABSL_FLAG(int, seconds, 5, "how long the ranks step without attackers, before and after");
ABSL_FLAG(uint32_t, seed, 1, "of what attackers do at random");
ABSL_FLAG(std::string, json, "", "also write the results to this file");
ABSL_FLAG(bool, attack, false, "this process is the attackers (started so by rank 0)");

namespace lockstep::bench {
namespace {

// Of what came in the end, when each kind has been silent for a while: its line in the log then counts those that were left out.
constexpr std::chrono::milliseconds kLinePause{1'500};
constexpr int64_t kLastConnections = 100;
constexpr int kRanksMax = 64;
// A rank that waits for others to form a world does not look after its Unix socket, and the queue of that takes 512 connections.
constexpr int64_t kUnixQueue = 500;
constexpr std::chrono::seconds kPhaseTime{300};  // at most

struct Options {
  int ranks = 2;
  int64_t elements = 0;
};

absl::StatusOr<Options> OptionsFromFlags() {
  Options options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes, ParseByteCount(absl::GetFlag(FLAGS_size)));
  options.elements = bytes / static_cast<int64_t>(sizeof(float));
  if (options.ranks < 2 || options.ranks > kRanksMax || options.elements < 1 || absl::GetFlag(FLAGS_connections) < 1 ||
      absl::GetFlag(FLAGS_connections_per_phase) < 1 || absl::GetFlag(FLAGS_at_once) < 1 ||
      absl::GetFlag(FLAGS_seconds) < 1) {
    return absl::InvalidArgumentError("there must be 2 to 64 ranks, an element, a connection and a second");
  }
  return options;
}

// ---- What all processes share

// Memory of the launcher's that ranks and attackers map.
struct Board {
  std::atomic<int32_t> launcher{0};
  std::array<std::atomic<int32_t>, kRanksMax> ranks{};
  // Written by rank 0. Counts up: phase n is kPhases[n % 3].
  std::atomic<uint32_t> phase{0};
  // Written by the attackers: a phase in the upper 32 bits, and the connections that they have made in it at the listener with the fewest.
  std::atomic<uint64_t> made{0};
  std::atomic<bool> attacks_over{false};
  std::atomic<int64_t> refusals_of_store{0};  // written by the launcher

  // True once the attackers have made enough connections in this phase, or in all.
  bool Made(uint32_t in_phase) const {
    const uint64_t so_far = made;
    const auto enough = static_cast<uint64_t>(absl::GetFlag(FLAGS_connections_per_phase));
    const uint64_t at = so_far >> 32;
    return attacks_over || at > in_phase || (at == in_phase && (so_far & 0xffffffff) >= enough);
  }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

constexpr const char* kPhases[] = {"train", "close", "form"};
constexpr char kBoardVariable[] = "UNAUTHENTICATED_PEERS_BOARD";

// The launcher's. It and the descriptor stay until the process ends.
absl::StatusOr<Board*> CreateBoard() {
  const int file = memfd_create("board", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Board)) != 0) return ErrnoStatus(errno, "create shared memory");
  if (setenv(kBoardVariable, absl::StrCat("/proc/", getpid(), "/fd/", file).c_str(), 1) != 0) {
    return ErrnoStatus(errno, "setenv");
  }
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map shared memory");
  Board* const board = new (memory) Board;
  board->launcher = getpid();
  return board;
}

// Another process's view of it.
absl::StatusOr<Board*> OpenBoard() {
  const std::string path = GetEnv(kBoardVariable).value_or("");
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("the program starts its ranks itself: open '", path, "'"));
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map shared memory");
  return static_cast<Board*>(memory);
}

std::vector<pid_t> Processes(const Board& board) {
  std::vector<pid_t> processes = {board.launcher};
  for (const auto& rank : board.ranks) {
    if (rank != 0) processes.push_back(rank);
  }
  return processes;
}

// ---- The attackers' process

// Streams come as the size of each, a blank, and its bytes.
std::vector<std::string> ReadStreams(int fd) {
  std::string text;
  char bytes[65'536];
  for (ssize_t count; (count = pread(fd, bytes, sizeof(bytes), static_cast<off_t>(text.size()))) > 0;) {
    text.append(bytes, static_cast<size_t>(count));
  }
  std::vector<std::string> streams;
  for (absl::string_view rest = text; !rest.empty();) {
    const size_t blank = rest.find(' ');
    size_t size = 0;
    if (blank == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, blank), &size)) break;
    streams.emplace_back(rest.substr(blank + 1, size));
    rest.remove_prefix(std::min(rest.size(), blank + 1 + size));
  }
  return streams;
}

// Prints what came of it as JSON.
int RunAttackers() {
  const absl::StatusOr<Board*> opened = OpenBoard();
  if (!opened.ok()) return Complain(opened.status());
  Board* const board = *opened;
  const std::string transport = absl::GetFlag(FLAGS_transport);
  const bool fabric = transport == "ofi";
  AttackTargets targets(fabric ? Purpose::kFabric : Purpose::kData, fabric);
  const auto find = [&] { return targets.Find(Processes(*board)); };
  AttackOptions options;
  options.knowledge.streams = ReadStreams(STDIN_FILENO);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.at_once = static_cast<size_t>(absl::GetFlag(FLAGS_at_once));
  options.phase = [&] { return std::string(kPhases[board->phase % std::size(kPhases)]); };
  const auto begin = std::chrono::steady_clock::now();
  const std::string of_transport =
      fabric ? "libfabric's port" : Name(transport == "tcp" ? Purpose::kData : Purpose::kLocal);
  const std::array<std::string, 3> listeners = {Name(Purpose::kStore), Name(Purpose::kControl), of_transport};
  uint32_t phase = board->phase;
  std::array<int64_t, 3> before = {};  // this phase
  AttackResults results = RunAttacks(find, options, [&](const AttackResults& so_far) {
    std::array<int64_t, 3> now = {};
    for (const auto& [attack_case, count] : so_far.cases) {
      for (size_t i = 0; i < listeners.size(); ++i) {
        if (std::get<1>(attack_case) == listeners[i]) now[i] += count.connections;
      }
    }
    if (const uint32_t in_phase = board->phase; in_phase != phase) {
      phase = in_phase;
      before = now;
    }
    int64_t fewest = now[0] - before[0];
    for (size_t i = 1; i < listeners.size(); ++i) {
      const int64_t made = now[i] - before[i];
      // Listeners of shared memory are there while the world forms.
      const bool local = listeners[i] == Name(Purpose::kLocal);
      if (local && (made >= kUnixQueue || phase % std::size(kPhases) + 1 != std::size(kPhases))) continue;
      fewest = std::min(fewest, made);
    }
    board->made = uint64_t{phase} << 32 | static_cast<uint64_t>(fewest);
    // Not before each phase has been.
    return phase >= std::size(kPhases) && so_far.connections >= absl::GetFlag(FLAGS_connections);
  });
  const double seconds = SecondsSince(begin);
  const int64_t most = results.connections;
  board->attacks_over = true;
  (void)poll(nullptr, 0, static_cast<int>(kLinePause.count()));
  options.patience = std::chrono::seconds(6);
  options.phase = [] { return std::string("after"); };
  results.Add(
      RunAttacks(find, options, [](const AttackResults& so_far) { return so_far.connections >= kLastConnections; }));
  Json attacks = Json::object();
  Json phases = Json::object();
  for (const auto& [attack_case, count] : results.cases) {
    const auto& [in_phase, listener, attack] = attack_case;
    Json& of_attack = attacks[Name(attack)];
    of_attack = of_attack.is_null() ? count.connections : of_attack.get<int64_t>() + count.connections;
    Json& of_listener = phases[in_phase][listener];
    of_listener = of_listener.is_null() ? count.connections : of_listener.get<int64_t>() + count.connections;
  }
  const Json result = {{"captures", options.knowledge.streams.size()},
                       {"connections", results.connections},
                       {"per_second", static_cast<double>(most) / seconds},
                       {"turned_away", results.turned_away},
                       {"left", results.left},
                       {"unreachable", results.unreachable},
                       {"admitted", results.admitted},
                       {"attacks", attacks},
                       {"phases", phases}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

// The process, from rank 0's side.
class Attackers {
 public:
  static absl::StatusOr<Attackers> Start(const std::vector<std::string>& streams) {
    Attackers attackers;
    // Not of UniqueFd, which a forked child closes. They stay open until this process ends.
    attackers.output_ = memfd_create("attackers", MFD_CLOEXEC);
    const int input = memfd_create("streams", MFD_CLOEXEC);
    if (attackers.output_ < 0 || input < 0) return ErrnoStatus(errno, "memfd_create");
    std::string text;
    for (const std::string& stream : streams) absl::StrAppend(&text, stream.size(), " ", stream);
    if (write(input, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      return ErrnoStatus(errno, "write streams");
    }
    SpawnOptions spawn;
    spawn.path = "/proc/self/exe";
    spawn.arguments = {"attackers",
                       "--attack",
                       absl::StrCat("--transport=", absl::GetFlag(FLAGS_transport)),
                       absl::StrCat("--connections=", absl::GetFlag(FLAGS_connections)),
                       absl::StrCat("--at_once=", absl::GetFlag(FLAGS_at_once)),
                       absl::StrCat("--seed=", absl::GetFlag(FLAGS_seed))};
    spawn.environment = EnvironmentWith({});
    spawn.stdin_fd = input;
    spawn.stdout_fd = attackers.output_;
    spawn.stderr_fd = STDERR_FILENO;
    LOCKSTEP_ASSIGN_OR_RETURN(attackers.pid_, Spawn(spawn));
    return attackers;
  }

  // An error if they have ended before their attacks were over.
  absl::Status CheckRunning() {
    siginfo_t ended = {};
    if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0) {
      return ErrnoStatus(errno, "wait for the attackers");
    }
    if (ended.si_pid == 0 || ended.si_status == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the attackers' process has ended with ", ended.si_status));
  }

  // Null while they are at it.
  absl::StatusOr<Json> Result() {
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == 0) return Json();
    if (ended < 0) return ErrnoStatus(errno, "wait for the attackers");
    if (status != 0) return absl::InternalError(absl::StrCat("the attackers' process ", DescribeWaitStatus(status)));
    std::string text;
    char piece[1 << 16];
    for (ssize_t bytes; (bytes = pread(output_, piece, sizeof(piece), static_cast<off_t>(text.size()))) > 0;) {
      text.append(piece, static_cast<size_t>(bytes));
    }
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
  explicit Steps(int64_t elements) : data_(static_cast<size_t>(elements)) {}

  // Steps until `over`, which rank 0 asks about, and that at every step. Returns steps per second.
  absl::StatusOr<double> Until(const ProcessGroup& group, const std::function<absl::StatusOr<bool>()>& over) {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t steps = 1;; ++steps) {
      std::fill(data_.begin(), data_.end(), 1.0f);
      bool done = false;
      if (group.leads()) {
        LOCKSTEP_ASSIGN_OR_RETURN(done, over());
      }
      data_[0] = done ? 0.0f : 1.0f;
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = DType::kF32;
      request.op = ReduceOp::kSum;
      request.count = data_.size();
      request.input = request.output = data_.data();
      LOCKSTEP_RETURN_IF_ERROR(group.communicator()->Run(request));
      for (size_t i = 1; i < data_.size(); ++i) {
        if (data_[i] != static_cast<float>(group.size())) return absl::DataLossError("a sum is wrong");
      }
      // Rank 0 alone adds less.
      if (data_[0] != static_cast<float>(group.size())) return static_cast<double>(steps) / SecondsSince(begin);
    }
  }

  absl::StatusOr<double> For(const ProcessGroup& group, std::chrono::seconds time) {
    const Deadline deadline = Deadline::After(time);
    return Until(group, [&]() -> absl::StatusOr<bool> { return deadline.passed(); });
  }

 private:
  std::vector<float> data_;
};

absl::Status WaitUntil(const std::function<bool()>& condition, const char* what) {
  const Deadline deadline = Deadline::After(kPhaseTime);
  while (!condition()) {
    if (deadline.passed()) return absl::DeadlineExceededError(absl::StrCat("waited for ", what));
    (void)poll(nullptr, 0, 1);
  }
  return absl::OkStatus();
}

// A world, which ends and forms again under attack.
class AttackedWorld {
 public:
  AttackedWorld(Board* board, const Options& options) : board_(board), options_(options) {}

  absl::Status Form() {
    WorldOptions world_options;
    world_options.transport = absl::GetFlag(FLAGS_transport);
    LOCKSTEP_ASSIGN_OR_RETURN(world_, JoinWorld(world_options, options_.ranks, /*pin=*/false));
    group_.emplace(world_->communicator());
    ++formed_;
    return group_->Barrier();
  }

  // The phases "close" and "form". The last rank leaves first and comes last, each time when the others have been attacked enough.
  absl::Status CloseAndFormAgain() {
    const bool last = group_->rank() == Rank(options_.ranks - 1);
    const bool leads = group_->leads();
    const uint32_t train = board_->phase;
    LOCKSTEP_RETURN_IF_ERROR(group_->Barrier());  // all have read it
    const uint32_t close = train + 1;
    const uint32_t form = train + 2;
    if (leads) board_->phase = close;
    if (!last) LOCKSTEP_RETURN_IF_ERROR(WaitUntil([&] { return board_->Made(close); }, "attacks on a world that ends"));
    group_.reset();
    world_.reset();
    if (leads) board_->phase = form;
    if (last) LOCKSTEP_RETURN_IF_ERROR(WaitUntil([&] { return board_->Made(form); }, "attacks on a world that forms"));
    LOCKSTEP_RETURN_IF_ERROR(Form());
    if (leads) board_->phase = form + 1;
    return group_->Barrier();
  }

  const ProcessGroup& group() const { return *group_; }
  int64_t formed() const { return formed_; }  // how often

 private:
  Board* const board_;
  const Options options_;
  std::unique_ptr<World> world_;
  absl::optional<ProcessGroup> group_;
  int64_t formed_ = 0;
};

absl::Status RunRank(const Options& options) {
  const OwnLog own_log;
  SetLogLevel(LogLevel::kInfo);  // with the counts of listeners that end
  LOCKSTEP_ASSIGN_OR_RETURN(Board* const board, OpenBoard());
  absl::StatusOr<PacketCapture> capture = PacketCapture::Start();
  AttackedWorld world(board, options);
  LOCKSTEP_RETURN_IF_ERROR(world.Form());
  board->ranks[world.group().rank().value()] = getpid();
  LOCKSTEP_RETURN_IF_ERROR(world.group().Barrier());
  const bool leads = world.group().leads();
  std::vector<std::string> streams;
  if (capture.ok() && leads) streams = capture->Take(PortsOf(ListeningSocketsOf(Processes(*board))));
  capture = absl::CancelledError();

  const std::chrono::seconds quiet(absl::GetFlag(FLAGS_seconds));
  Steps steps(options.elements);
  LOCKSTEP_ASSIGN_OR_RETURN(const double before, steps.For(world.group(), quiet));
  absl::optional<Attackers> attackers;
  if (leads) {
    LOCKSTEP_ASSIGN_OR_RETURN(attackers, Attackers::Start(streams));
  }
  std::vector<double> attacked;  // steps per second in each world
  for (;;) {
    const uint32_t train = board->phase;
    LOCKSTEP_ASSIGN_OR_RETURN(attacked.emplace_back(), steps.Until(world.group(), [&]() -> absl::StatusOr<bool> {
      LOCKSTEP_RETURN_IF_ERROR(attackers->CheckRunning());
      return board->Made(train);
    }));
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t over, world.group().FromLeader(board->attacks_over ? 1 : 0));
    if (over != 0) break;
    LOCKSTEP_RETURN_IF_ERROR(world.CloseAndFormAgain());
  }
  // The last of them, whose patience the listeners' time ends.
  Json result;
  const ProcessGroup& group = world.group();
  LOCKSTEP_RETURN_IF_ERROR(steps
                               .Until(group,
                                      [&]() -> absl::StatusOr<bool> {
                                        LOCKSTEP_ASSIGN_OR_RETURN(result, attackers->Result());
                                        return !result.is_null();
                                      })
                               .status());
  LOCKSTEP_ASSIGN_OR_RETURN(const double after, steps.For(group, quiet));

  const std::string log = own_log.Read();
  std::map<Refusal, int64_t> own = LoggedRefusals(log);
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
  report.Begin("#\n# a job that unauthenticated peers attack\n", {{12, "connections", "", "/connections"},
                                                                  {9, "worlds", "formed", "/worlds"},
                                                                  {9, "", "(1/s)", "/per_second", 0},
                                                                  {12, "turned away", "", "/turned_away"},
                                                                  {9, "left", "", "/left"},
                                                                  {12, "unreachable", "", "/unreachable"},
                                                                  {9, "admitted", "", "/admitted_count"},
                                                                  {10, "refusals", "counted", "/refusals"},
                                                                  {9, "lines", "logged", "/log_lines"},
                                                                  {12, "steps before", "(1/s)", "/steps_before", 1},
                                                                  {12, "attacked", "(1/s)", "/steps_attacked", 1},
                                                                  {12, "after", "(1/s)", "/steps_after", 1}});
  if (!group.leads()) return absl::OkStatus();
  result["admitted_count"] = result["admitted"].size();
  result["refusals"] = refusals + static_cast<uint64_t>(board->refusals_of_store);
  result["refused"] = refused;
  result["log_lines"] = lines;
  result["steps_before"] = before;
  result["steps_attacked"] = Median(attacked);
  result["worlds"] = world.formed();
  result["steps_after"] = after;
  report.AddRow(result);
  report.Print("#\n# connections by phase and listener:\n");
  for (const auto& [phase, listeners] : result["phases"].items()) {
    for (const auto& [listener, count] : listeners.items()) {
      report.Print(absl::StrCat("#   ", phase, ", ", listener, ": ", count.dump(), "\n"));
    }
  }
  report.Print("#\n# turned away, as the ranks counted, without the store:\n");
  for (const auto& [text, count] : refused.items()) report.Print(absl::StrCat("#   ", text, ": ", count.dump(), "\n"));
  LOCKSTEP_RETURN_IF_ERROR(report.Write(absl::GetFlag(FLAGS_json)));
  return result["admitted"].empty() ? absl::OkStatus()
                                    : absl::PermissionDeniedError(result["admitted"][0].get<std::string>());
}

// Counts what the store's server has turned away, and writes other warnings.
void TakeLogLine(void* board, LogLevel level, const char* line) {
  const std::map<Refusal, int64_t> refusals = LoggedRefusals(line);
  for (const auto& [kind, count] : refusals) static_cast<Board*>(board)->refusals_of_store += count;
  if (refusals.empty() && level <= LogLevel::kWarning) std::fprintf(stderr, "%s\n", line);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  // The attackers' process has the variables of rank 0, which mean nothing to it.
  for (char** word = argv; *word != nullptr; ++word) {
    if (absl::string_view(*word) == "--attack") {
      lockstep::bench::ParseFlags(argc, argv, "attackers");
      return lockstep::bench::RunAttackers();
    }
  }
  if (!lockstep::bench::IsRank()) {
    const absl::StatusOr<lockstep::bench::Board*> board = lockstep::bench::CreateBoard();
    if (!board.ok()) return lockstep::bench::Complain(board.status());
    lockstep::SetLogLevel(lockstep::LogLevel::kInfo);
    lockstep::SetLogSink(&lockstep::bench::TakeLogLine, *board);
  }
  return lockstep::bench::RunBench(argc, argv,
                                   "trains, closes and forms worlds on ranks that it starts on this machine while "
                                   "unauthenticated peers attack their listeners: counts who was turned away and "
                                   "compares steps per second",
                                   &lockstep::bench::OptionsFromFlags, &lockstep::bench::RunRank);
}
