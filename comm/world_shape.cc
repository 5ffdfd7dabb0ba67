#include "comm/world_shape.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/cores.h"

namespace lockstep {
namespace {

// How many ranks each host has, if they are numbered host by host and all hosts but the last, which may have fewer, have as
// many; else 1.
int RanksPerHost(const std::vector<int32_t>& host_of_rank) {
  const auto first_end = std::find_if(host_of_rank.begin(), host_of_rank.end(), [](int32_t host) { return host != 0; });
  const auto ranks_per_host = static_cast<int32_t>(first_end - host_of_rank.begin());
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    if (host_of_rank[rank] != static_cast<int32_t>(rank) / ranks_per_host) return 1;
  }
  return ranks_per_host;
}

struct Host {
  int ranks = 0;
  CoreSet cores;  // of all of them: each may be pinned to one of its own

  void Add(const Member& member) {
    ++ranks;
    AddCores(member.cores, &cores);
  }
  double RanksPerCore() const {
    const int count = CountCores(cores);
    return count == 0 ? 0 : static_cast<double>(ranks) / count;
  }
};

}  // namespace

double RanksPerCore(absl::Span<const Member> members, absl::string_view host_id) {
  Host host;
  for (const Member& member : members) {
    if (member.host_id == host_id) host.Add(member);
  }
  return host.RanksPerCore();
}

WorldShape ShapeOf(absl::Span<const Member> members, const LinkCosts& local) {
  WorldShape shape;
  std::vector<Host> hosts;
  std::map<std::string, int32_t> numbers;
  for (const Member& member : members) {
    const auto number = static_cast<int32_t>(numbers.size());
    const int32_t host = numbers.try_emplace(member.host_id, number).first->second;
    shape.topology.host_of_rank.push_back(host);
    hosts.resize(numbers.size());
    hosts[host].Add(member);
  }
  double ranks_per_core = 0;
  for (const Host& host : hosts) ranks_per_core = std::max(ranks_per_core, host.RanksPerCore());
  shape.network =
      Crowded(MakeNetwork(local, kTcpBetweenHosts, RanksPerHost(shape.topology.host_of_rank)), ranks_per_core);
  return shape;
}

WorldShape PartOf(const WorldShape& world, absl::Span<const Rank> ranks) {
  const std::vector<int32_t>& hosts = world.topology.host_of_rank;
  if (hosts.empty()) return world;
  WorldShape part;
  std::map<int32_t, int32_t> numbers;
  for (const Rank rank : ranks) {
    const auto number = static_cast<int32_t>(numbers.size());
    part.topology.host_of_rank.push_back(numbers.try_emplace(hosts[rank.value()], number).first->second);
  }
  part.network = world.network;
  part.network.ranks_per_host = RanksPerHost(part.topology.host_of_rank);
  return part;
}

}  // namespace lockstep
