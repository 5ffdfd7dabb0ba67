// What a barrier of ranks that share memory costs (kBarrier and kShare in comm/schedule/schedule.h), for the simulator and the cost model.

#ifndef COMM_SELECT_BARRIER_COSTS_H_
#define COMM_SELECT_BARRIER_COSTS_H_

#include "comm/topology/link_costs.h"

namespace lockstep {

// A line of one rank for one other. Rounded from all-reduces of 128 bytes between two ranks on a core each: with one barrier
// they took 0.27 to 0.38 us, with two of them, and as few bytes to copy, 0.37 to 0.51.
inline constexpr LinkCosts kLine = {/*latency_ns=*/100, /*byte_ns=*/0, /*message_ns=*/10};

// From when the last rank comes until all may go on: each tells all others, one after the other.
constexpr double BarrierNs(int size) { return (size - 1) * kLine.message_ns + kLine.latency_ns; }

}  // namespace lockstep

#endif  // COMM_SELECT_BARRIER_COSTS_H_
