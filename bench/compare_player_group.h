// PlayerGroup: the running ranks of one contender, asked over their sockets (the protocol is in bench/peers/player.h).
//
// Not thread-safe; the thread that starts a group must outlive it, as Spawn says. Every wait has a deadline. After any
// error the group is of no more use: destroy it. Where launchers start the ranks there must be a Subreaper meanwhile.

#ifndef BENCH_COMPARE_PLAYER_GROUP_H_
#define BENCH_COMPARE_PLAYER_GROUP_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "bench/compare_contender.h"
#include "bench/compare_process_family.h"

namespace lockstep {
namespace bench {

struct PlayerGroupOptions {
  int ranks = 2;
  int64_t bytes_max = 0;  // of a vector
  bool pin = true;        // each rank to one core, by turns
  std::string folder;     // to be made
};

struct PlayerTiming {
  double seconds = 0;       // of one call on the slowest rank
  double wall_seconds = 0;  // of one call and what is done before it, likewise
};

// What the ranks' TCP connections tell: those of the rank that sent most over one.
struct PlayerSockets {
  std::string congestion_control = "none";
  uint64_t bytes = 0;
};

class PlayerGroup {
 public:
  // Makes the folder, starts the ranks in it, and returns when all have said hello. Errors: UNAVAILABLE when a rank
  // ends or refuses, with what it said; DEADLINE_EXCEEDED naming the ranks that are missing; those of Spawn.
  static absl::StatusOr<std::unique_ptr<PlayerGroup>> Start(const Contender& contender,
                                                            const PlayerGroupOptions& options, Deadline deadline);

  // Ends the processes that are left; takes three seconds if they do not obey.
  ~PlayerGroup() = default;
  PlayerGroup(const PlayerGroup&) = delete;
  PlayerGroup& operator=(const PlayerGroup&) = delete;

  absl::StatusOr<PlayerTiming> Run(int64_t bytes, int64_t calls, Deadline deadline);
  // The wrong elements of one all-reduce, on all ranks together.
  absl::StatusOr<uint64_t> Check(int64_t bytes, Deadline deadline);
  absl::StatusOr<PlayerSockets> Sockets(Deadline deadline);
  // Returns when the processes have ended by themselves.
  absl::Status Quit(Deadline deadline);

 private:
  struct Rank {
    UniqueFd socket;
    pid_t pid = 0;
    std::string received;  // not yet a line
    bool answered = false;
  };

  PlayerGroup(int ranks, const std::string& folder) : ranks_(ranks), processes_(folder + "/output") {}
  absl::Status StartProcesses(const Contender& contender, const PlayerGroupOptions& options);
  absl::Status AwaitHellos(int listener, Deadline deadline);
  absl::Status Greet(UniqueFd connection, Deadline deadline);
  // Sends all ranks a line and returns what comes after `word` in their answers, in rank order.
  absl::StatusOr<std::vector<std::string>> Ask(absl::string_view line, absl::string_view word, Deadline deadline);
  // The next line that a rank has sent, empty if there is none yet. `name` is how errors call it.
  absl::StatusOr<std::string> TakeLine(Rank* rank, const std::string& name);
  // UNAVAILABLE, with how it ended and the last line that the processes wrote.
  absl::Status Ended(const std::string& name, pid_t pid);

  std::vector<Rank> ranks_;
  ProcessFamily processes_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_PLAYER_GROUP_H_
