// What a barrier of ranks that share memory costs (kBarrier and kShare in comm/schedule/schedule.h), for the simulator and the cost model.

#ifndef COMM_SELECT_BARRIER_COSTS_H_
#define COMM_SELECT_BARRIER_COSTS_H_

#include "comm/topology/link_costs.h"

namespace lockstep {

// One rank's slot for one other rank. Rounded from all-reduces of 128 bytes between two ranks on a core each: 0.27 to 0.38 us with
// one barrier, 0.37 to 0.51 us with two and as few bytes to copy.
inline constexpr LinkCosts kLine = {/*latency_ns=*/100, /*byte_ns=*/0, /*message_ns=*/10};

// From the arrival of the last rank until all may go on. Each rank tells all others, one after the other.
constexpr double BarrierNs(int size) { return (size - 1) * kLine.message_ns + kLine.latency_ns; }

}  // namespace lockstep

#endif  // COMM_SELECT_BARRIER_COSTS_H_
