// The ranks of a benchmark: processes that it starts itself, unless a launcher has; and the measuring loop that they share.

#ifndef BENCH_RANKS_H_
#define BENCH_RANKS_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rank.h"
#include "comm/communicator.h"
#include "comm/world/world.h"

namespace lockstep::bench {

// Exit statuses.
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kSkipped = 77;

// Parses the flags. An argument that is no flag ends the program with kWrongUsage.
void ParseFlags(int argc, char** argv, const char* usage);

// Prints the program's name and the message to stderr. Returns `exit_status`.
int Complain(const absl::Status& status, int exit_status = kFailed);

// Whether a launcher started this process as a rank.
bool IsRank();

// Runs this program again, with the same arguments, as so many ranks. Rank 0 keeps the terminal. Reports a rank that fails on stderr.
// Returns the exit status for this process.
int RunAsRanks(int ranks, char** argv);

// The main function of a benchmark. `read` reads the options, among them the number of `ranks`, from flags. UNAVAILABLE: what they ask
// for is not on this machine (kSkipped). Each rank runs `run`.
template <typename Options>
int RunBench(int argc, char** argv, const char* usage, absl::StatusOr<Options> (*read)(),
             absl::Status (*run)(const Options&)) {
  ParseFlags(argc, argv, usage);
  const absl::StatusOr<Options> options = read();
  if (!options.ok()) {
    return Complain(options.status(), absl::IsUnavailable(options.status()) ? kSkipped : kWrongUsage);
  }
  if (!IsRank() && options->ranks > 1) return RunAsRanks(options->ranks, argv);
  const absl::Status status = run(*options);
  return status.ok() ? 0 : Complain(status);
}

// Creates the world of `ranks` ranks, as one of them or alone. INVALID_ARGUMENT if the launcher started another number. `pin`: ties the
// calling thread to one core, the rank-th of those that it may use, if there are as many. It does so once the world is made, because
// ranks poll only if they may use enough cores together. Threads made before stay as they are.
absl::StatusOr<std::unique_ptr<World>> JoinWorld(const WorldOptions& options, int ranks, bool pin);

// How `self` reaches the others, from a communicator's description of itself: "shm", "tcp 10.0.0.1:4411". Each route once, with commas
// between. "none" if the description names no other rank.
std::string RoutesIn(const std::string& description, Rank self);

// Small values that the ranks of a benchmark tell each other, outside what is measured. Every rank makes the same calls in the same
// order.
class ProcessGroup {
 public:
  // Borrows the communicator.
  explicit ProcessGroup(Communicator* communicator) : communicator_(communicator) {}

  Communicator* communicator() const { return communicator_; }
  Rank rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  bool leads() const { return rank() == Rank(0); }
  std::string Routes() const { return RoutesIn(communicator_->Describe(), rank()); }

  absl::Status Barrier() const;
  absl::StatusOr<double> Largest(double value) const;
  // Element by element.
  absl::Status TakeLargest(std::vector<double>* values) const;
  absl::StatusOr<uint64_t> Sum(uint64_t value) const;
  // Rank 0's value.
  absl::StatusOr<int64_t> FromLeader(int64_t value) const;

 private:
  Communicator* communicator_;
};

// The measuring loop, as in nccl-tests: in a round every rank makes many calls back to back, behind a barrier. The time of the round is
// that of the slowest rank divided by the number of calls. Unlike nccl-tests there are several rounds, and their median counts: other
// load on the machine distorts a mean.
struct MeasureOptions {
  int64_t iterations = 0;  // calls in a round; 0: as many as fill round_time
  int64_t warmup = 5;      // calls before the first round
  int rounds = 5;
  std::chrono::milliseconds round_time{20};
};

// Makes this rank's part of so many calls, back to back.
using Calls = absl::FunctionRef<absl::Status(int64_t calls)>;

// Warms up. Returns the number of calls for a round, equal on all ranks.
absl::StatusOr<int64_t> WarmUp(const ProcessGroup& group, const MeasureOptions& options, Calls calls);

// Seconds per call in one round, equal on all ranks.
absl::StatusOr<double> TimeRound(const ProcessGroup& group, int64_t iterations, Calls calls);

}  // namespace lockstep::bench

#endif  // BENCH_RANKS_H_
