// The shape of a world, as far as it decides which algorithm is best: which ranks share a host, and what connects them. Equal on all
// ranks, because it is computed from what all of them know.

#ifndef COMM_TOPOLOGY_WORLD_SHAPE_H_
#define COMM_TOPOLOGY_WORLD_SHAPE_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"
#include "transport/control/control_types.h"

namespace lockstep {

struct WorldShape {
  Topology topology;  // empty: one host
  Network network = kTcpNetwork;
};

// The shape of a world. `local`: what connects the ranks of one host.
// - Hosts are numbered in the order of their lowest ranks.
// - A Network describes hosts with the same number of ranks, numbered host by host (the last may have fewer) or interleaved. For
//   any other world only the topology tells about hosts, and the network has one rank on each.
// - Where ranks outnumber the cores of a host, the network is as crowded as the most crowded host.
WorldShape ShapeOf(absl::Span<const Member> members, const LinkCosts& local);

// The ranks of a host divided by the cores that they may run on. 0 when the cores are not known.
double RanksPerCore(absl::Span<const Member> members, absl::string_view host_id);

// The shape of a subgroup of the world. `ranks`: its members' ranks in the world, in the subgroup's order.
WorldShape PartOf(const WorldShape& world, absl::Span<const Rank> ranks);

}  // namespace lockstep

#endif  // COMM_TOPOLOGY_WORLD_SHAPE_H_
