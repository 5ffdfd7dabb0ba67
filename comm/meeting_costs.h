// What a meeting of ranks that share memory costs (kMeet and kShare in comm/schedule.h), for the simulator and the prices.

#ifndef COMM_MEETING_COSTS_H_
#define COMM_MEETING_COSTS_H_

#include "comm/link_costs.h"

namespace lockstep {

// A line of one rank for one other. Rounded from bare prototypes on one machine with two cores, not from MemoryExecutor: a
// cache line took 60 ns from one process that polls to another, and an all-reduce of 8 bytes with two barriers 130 ns.
inline constexpr LinkCosts kLine = {/*latency_ns=*/60, /*byte_ns=*/0, /*message_ns=*/5};

// From when the last rank comes until all may go on: each tells all others, one after the other.
constexpr double MeetingNs(int size) { return (size - 1) * kLine.message_ns + kLine.latency_ns; }

}  // namespace lockstep

#endif  // COMM_MEETING_COSTS_H_
