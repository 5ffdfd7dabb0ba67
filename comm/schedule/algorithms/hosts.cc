#include "comm/schedule/algorithms/hosts.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace lockstep {
namespace algorithms {

Hosts::Hosts(const Place& place) {
  const std::vector<int32_t>& labels = place.topology->host_of_rank;
  std::map<int32_t, int> host_of_label;
  for (int rank = 0; rank < place.size; ++rank) {
    const int next = count();
    const int host = host_of_label.try_emplace(labels.empty() ? 0 : labels[rank], next).first->second;
    if (host == next) ranks.emplace_back();
    host_of.push_back(host);
    local_of.push_back(static_cast<int>(ranks[host].size()));
    ranks[host].push_back(rank);
  }
  own_host = host_of[place.rank];
  own_local = local_of[place.rank];
  ranks_min = place.size;
  for (const std::vector<int>& of_host : ranks) ranks_min = std::min(ranks_min, static_cast<int>(of_host.size()));
}

std::vector<int> Hosts::RanksWithDeputy(int host, int local) const {
  std::vector<int> served;
  for (size_t i = local; i < ranks[host].size(); i += mine().size()) served.push_back(ranks[host][i]);
  return served;
}

}  // namespace algorithms
}  // namespace lockstep
