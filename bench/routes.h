// How ranks reach each other, in a few words.

#ifndef BENCH_ROUTES_H_
#define BENCH_ROUTES_H_

#include <string>

#include "base/rank.h"

namespace lockstep {
namespace bench {

// Over what `self` reaches the others, from a communicator's description of itself: "shm", "tcp 10.0.0.1:4411"; each
// route once, with commas between. "none" where it tells of no other rank.
std::string RoutesIn(const std::string& description, Rank self);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_ROUTES_H_
