// The price of each algorithm: what comm/prices.cc chooses from. All in nanoseconds, for a collective that the
// algorithm carries out and at least two ranks.

#ifndef COMM_PRICES_FORMS_H_
#define COMM_PRICES_FORMS_H_

#include "comm/prices/call.h"

namespace lockstep {
namespace prices {

// rings.cc
double Ring(const Call& call);
double Chain(const Call& call);
double ChainReduce(const Call& call);
double ChainAllReduce(const Call& call);

// trees.cc
double BinomialBroadcast(const Call& call);
double BinomialReduce(const Call& call);
double BinomialGather(const Call& call);
double BinomialScatter(const Call& call);
double TwoLevelBroadcast(const Call& call);

// scatter_all_gather.cc
double ScatterAllGather(const Call& call);

// direct.cc
double Direct(const Call& call);  // one round, everyone to everyone
double TwoShot(const Call& call);
double ToRoot(const Call& call);
double FromRoot(const Call& call);

// rounds.cc
double RecursiveDoubling(const Call& call);
double HalvingDoubling(const Call& call);
double BruckAllGather(const Call& call);
double BruckAllToAll(const Call& call);
double Dissemination(const Call& call);

// two_level.cc
double TwoLevelAllReduce(const Call& call);
double TwoLevelAllGather(const Call& call);
double TwoLevelReduceScatter(const Call& call);

}  // namespace prices
}  // namespace lockstep

#endif  // COMM_PRICES_FORMS_H_
