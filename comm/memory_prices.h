// Closed forms of what the algorithms by memory cost: a part of comm/prices.h.

#ifndef COMM_MEMORY_PRICES_H_
#define COMM_MEMORY_PRICES_H_

#include <cstdint>

#include "comm/link_costs.h"
#include "comm/schedule.h"

namespace lockstep {

// Nanoseconds, equal to the simulator's (comm/simulator.h). The algorithm is by memory and carries out the collective;
// `size` is at least 2; `bytes` is that of the whole vector, as in PriceNs(). Infinity where the ranks do not share one
// host, and by one_line for more than a line holds.
double MemoryPriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network);

}  // namespace lockstep

#endif  // COMM_MEMORY_PRICES_H_
