// The shape of a world, as far as it decides which algorithm is best: who shares a host, and what connects the ranks of one.
// The same on all ranks, since it is made of what all of them know.

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

// `local`: what connects the ranks of one host. Hosts are numbered in the order of their lowest ranks. A network has the same
// number of ranks on every host, numbered host by host (the last may have fewer then) or interleaved; of a world that is not
// like that only the topology tells, and its network is that of ranks with a host each. Where ranks outnumber the cores of a
// host, the network is as crowded as on the host where they do most.
WorldShape ShapeOf(absl::Span<const Member> members, const LinkCosts& local);

// How many ranks of a host there are for each core that they may run on. 0 when the cores are not known.
double RanksPerCore(absl::Span<const Member> members, absl::string_view host_id);

// The shape of a part of the world: `ranks` are the world's ranks of the part's, in its order.
WorldShape PartOf(const WorldShape& world, absl::Span<const Rank> ranks);

}  // namespace lockstep

#endif  // COMM_TOPOLOGY_WORLD_SHAPE_H_
