// The contenders that come with Lockstep: itself, and the limits.

#ifndef BENCH_COMPARE_OWN_H_
#define BENCH_COMPARE_OWN_H_

#include <string>
#include <vector>

#include "bench/compare_contender.h"

namespace lockstep {
namespace bench {

// Programs that run as ranks.
struct OwnPlayers {
  std::string lockstep;
  std::string limit;
};

// Lockstep over a transport, given to it as LOCKSTEP_TRANSPORT: one contender for each kind of memory that vectors can
// lie in, each with a name of its own.
std::vector<Contender> LockstepContenders(const OwnPlayers& players, const std::string& transport);

// What nothing can beat over that transport: "shm", the prototypes; "tcp", bare sockets under that congestion control
// (empty: the system's default); "ofi", the bare provider, and fi_pingpong where it is installed. Those among them that
// so many ranks can play.
std::vector<Contender> LimitContenders(const OwnPlayers& players, const std::string& transport, int ranks,
                                       const std::string& congestion_control);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_OWN_H_
