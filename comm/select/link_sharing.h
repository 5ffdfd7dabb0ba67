// How the ranks of a host share its link to other hosts, for the simulator and the cost model.
//
// Which messages are on a link at the same time depends on when they begin, which depends on who was on links before. This model
// needs no clock, so its answer is known beforehand: messages of one round (Step::round in comm/schedule/schedule.h) share the
// link, those of different rounds do not meet. Within a round the link serves all senders equally (processor sharing), as
// if all began at once. Let rank i send m_i bytes to other hosts in the round. Rank r is then done when
//
//   sum over i of min(m_i, m_r)
//
// bytes have left. Its bytes take that sum divided by m_r times as long as alone. For equal messages that is the number of senders,
// as in the max-rate model (Gropp, Olson and Samfass, EuroMPI 2016) of processes that can each fill the link.

#ifndef COMM_SELECT_LINK_SHARING_H_
#define COMM_SELECT_LINK_SHARING_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace lockstep {

class LinkSharing {
 public:
  // A message to another host. Sizes in any one unit.
  void Add(int host, int32_t round, int rank, double size) { senders_[{host, round}][rank] += size; }

  // By which factor what `rank` sends in the round takes longer than on a link of its own.
  // REQUIRES  Add() for this host, round and rank
  double Sharers(int host, int32_t round, int rank) const {
    const std::map<int, double>& sizes = senders_.at({host, round});
    const double own = sizes.at(rank);
    if (own == 0) return 1;
    double sharers = 0;
    for (const auto& [other, size] : sizes) sharers += std::min(1.0, size / own);
    return sharers;
  }

 private:
  std::map<std::pair<int, int32_t>, std::map<int, double>> senders_;  // by host and round, by rank
};

}  // namespace lockstep

#endif  // COMM_SELECT_LINK_SHARING_H_
