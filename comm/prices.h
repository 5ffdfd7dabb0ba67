// Prices: what each algorithm costs on a described network: the simulator's answer (comm/simulator.h, which defines the
// model) without schedules and without chunks, so that it can be asked for thousands of ranks. Pure.
//
// A message is two numbers: when its first chunk is there, and its last (comm/streams.h). What all rounds of an algorithm
// have in common is multiplied rather than repeated; where ranks differ, they are followed one by one, message by message
// (comm/prices/followed.h).
//
// Equal to the simulator's up to 128 ranks, on hosts of any equal number of ranks and a last one with fewer. Beyond, where
// one rank or one host's ranks may stand for all, still equal for most algorithms; comm/prices_test.cc says how far the
// others are off.

#ifndef COMM_PRICES_H_
#define COMM_PRICES_H_

#include <cstdint>

#include "comm/link_costs.h"
#include "comm/schedule.h"

namespace lockstep {

// The time in nanoseconds, with rank 0 as root. `bytes` as for Simulate(). Infinite for an algorithm that does not
// carry out the collective.
//
// Where the ranks of hosts are interleaved, algorithms that know no hosts are priced as if ranks were alone on theirs, with
// links as slow as those of all a host's ranks together are for one of them: nearly all their messages leave the host. Two
// levels cost what they cost in any numbering.
double PriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network);

}  // namespace lockstep

#endif  // COMM_PRICES_H_
