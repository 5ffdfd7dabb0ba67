#include "comm/topology/world_shape.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/cores.h"

namespace lockstep {
namespace {

// Of hosts with as many ranks each, but for the last one, which may have fewer where ranks are numbered host by host; of
// others, as if each rank had a host.
void SetHosts(const std::vector<int32_t>& host_of_rank, Network* network) {
  std::vector<int> ranks_of_host;
  bool by_host = true;
  for (const int32_t host : host_of_rank) ranks_of_host.resize(std::max<size_t>(ranks_of_host.size(), host + 1));
  for (size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    ++ranks_of_host[host_of_rank[rank]];
    if (rank > 0 && host_of_rank[rank] < host_of_rank[rank - 1]) by_host = false;
  }
  const auto end = ranks_of_host.end() - (by_host ? 1 : 0);
  const int each = ranks_of_host.front();
  const bool equal = std::all_of(ranks_of_host.begin(), end, [each](int ranks) { return ranks == each; });
  network->ranks_per_host = equal && ranks_of_host.back() <= each ? each : 1;
  network->interleaved = !by_host && network->ranks_per_host > 1;
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
  shape.network = Crowded(MakeNetwork(local, kTcpBetweenHosts, /*ranks_per_host=*/1), ranks_per_core);
  SetHosts(shape.topology.host_of_rank, &shape.network);
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
  SetHosts(part.topology.host_of_rank, &part.network);
  return part;
}

}  // namespace lockstep
