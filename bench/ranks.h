// The ranks of a benchmark: processes that it starts itself, unless a launcher has, and small values that they tell each other.

#ifndef BENCH_RANKS_H_
#define BENCH_RANKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rank.h"
#include "comm/communicator.h"
#include "comm/world/world.h"

namespace lockstep {
namespace bench {

// Exit statuses.
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kSkipped = 77;

// Parses the flags; exits with kWrongUsage for a word that is none. What runs again as ranks does so with the same words.
void ParseFlags(int argc, char** argv, const char* usage);

// Prints the message behind the program's name; returns `exit_status`.
int Complain(const absl::Status& status, int exit_status = kFailed);

// Whether a launcher started this process as a rank.
bool IsRank();

absl::StatusOr<std::string> ThisProgram();

// Runs this program again, with the same arguments, as so many ranks, of which rank 0 keeps the terminal; returns the exit status for
// this process. Complains on stderr about a rank that fails.
int RunAsRanks(int ranks, char** argv);

// The main function of a benchmark whose options are read from flags and have a number of `ranks`: each of them runs `run`.
template <typename Options>
int RunBench(int argc, char** argv, const char* usage, absl::StatusOr<Options> (*read)(),
             absl::Status (*run)(const Options&)) {
  ParseFlags(argc, argv, usage);
  const absl::StatusOr<Options> options = read();
  if (!options.ok()) return Complain(options.status(), kWrongUsage);
  if (!IsRank() && options->ranks > 1) return RunAsRanks(options->ranks, argv);
  const absl::Status status = run(*options);
  return status.ok() ? 0 : Complain(status);
}

// As a rank, or alone: the world of `ranks` ranks. INVALID_ARGUMENT where the launcher started another number. `pin` keeps the calling
// thread on a core of its own among those that it may use, the rank-th, if there are as many. That is done once the world is made: what
// the ranks may use together decides whether they poll. Threads made before keep what they had.
absl::StatusOr<std::unique_ptr<World>> JoinWorld(const WorldOptions& options, int ranks, bool pin);

// Over what `self` reaches the others, from a communicator's description of itself: "shm", "tcp 10.0.0.1:4411"; each route once, with
// commas between. "none" where it tells of no other rank.
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
  // Rank 0's value; that of the others does not matter.
  absl::StatusOr<int64_t> FromLeader(int64_t value) const;

 private:
  Communicator* communicator_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_RANKS_H_
