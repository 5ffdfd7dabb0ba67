// The hosts of a world, as the two-level algorithms see them.

#ifndef COMM_SCHEDULE_ALGORITHMS_HOSTS_H_
#define COMM_SCHEDULE_ALGORITHMS_HOSTS_H_

#include <vector>

#include "comm/schedule/algorithms/algorithms.h"

namespace lockstep {
namespace algorithms {

struct Hosts {
  explicit Hosts(const Place& place);

  int count() const { return static_cast<int>(ranks.size()); }
  const std::vector<int>& mine() const { return ranks[own_host]; }
  // The rank of `host` that handles `rank`'s blocks there. On `rank`'s own host: `rank`.
  int DeputyOf(int rank, int host) const { return ranks[host][local_of[rank] % ranks[host].size()]; }
  // The inverse: the ranks of `host` whose deputy on the own host is its rank number `local`, in order.
  std::vector<int> RanksWithDeputy(int host, int local) const;
  // The host `distance` places further on, from the own one round all hosts; the same for the ranks of the own host. Negative
  // distances go back. |distance| is at most the number of hosts or ranks.
  int HostFurtherOn(int distance) const { return (own_host + distance + count()) % count(); }
  int LocalFurtherOn(int distance) const {
    const int locals = static_cast<int>(mine().size());
    return mine()[(own_local + distance + locals) % locals];
  }

  // The ranks of each host, in order; hosts in the order of their lowest rank.
  std::vector<std::vector<int>> ranks;
  // Of each rank: its host, and its number among the host's ranks.
  std::vector<int> host_of;
  std::vector<int> local_of;
  // Where this rank is.
  int own_host = 0;
  int own_local = 0;
  int ranks_min = 0;  // on any host
};

}  // namespace algorithms
}  // namespace lockstep

#endif  // COMM_SCHEDULE_ALGORITHMS_HOSTS_H_
