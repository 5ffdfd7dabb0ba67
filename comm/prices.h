// Prices: what each algorithm costs on a described network, in closed form: the simulator's answer (comm/simulator.h,
// which defines the model) without the simulation, so that it can be asked for thousands of ranks. Pure.
//
// Most forms are recurrences over an algorithm's rounds or a tree's levels, in which a message is two numbers: when its
// first chunk is there, and its last. What is equal in all rounds is multiplied rather than repeated.
//
// Equal to the simulator's where there is one kind of link (one host, or one rank on each), and for most algorithms
// where hosts, and the ranks on each, are powers of two. Elsewhere estimates. comm/prices_test.cc says which, and how
// far off they are at most.

#ifndef COMM_PRICES_H_
#define COMM_PRICES_H_

#include <cstdint>

#include "comm/link_costs.h"
#include "comm/schedule.h"

namespace lockstep {

// The time in nanoseconds, with rank 0 as root. `bytes` as for Simulate(). Infinite for an algorithm that does not
// carry out the collective.
double PriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network);

}  // namespace lockstep

#endif  // COMM_PRICES_H_
