#include "comm/prices.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "comm/memory_prices.h"
#include "comm/prices/call.h"
#include "comm/prices/forms.h"

namespace lockstep {

double PriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network) {
  LOCKSTEP_CHECK(size >= 1 && bytes >= 0) << size << " ranks, " << bytes << " bytes";
  const Algorithms known = AlgorithmsFor(collective);
  if (std::find(known.begin(), known.end(), algorithm) == known.end()) return std::numeric_limits<double>::infinity();
  if (size == 1) return collective == Collective::kBarrier ? 0 : static_cast<double>(bytes) * network.copied_byte_ns;
  if (IsByMemory(algorithm)) return MemoryPriceNs(collective, algorithm, size, bytes, network);
  if (network.interleaved && algorithm != Algorithm::kTwoLevel && size > network.ranks_per_host) {
    Network apart = network;
    apart.interleaved = false;
    apart.remote.byte_ns *= network.ranks_per_host;
    apart.ranks_per_host = 1;
    return PriceNs(collective, algorithm, size, bytes, apart);
  }
  const prices::Call call{collective, size, static_cast<double>(bytes), network};
  switch (algorithm) {
    case Algorithm::kRing:
      return collective == Collective::kReduce ? prices::Chain(call) : prices::Ring(call);
    case Algorithm::kRecursiveDoubling:
      return prices::RecursiveDoubling(call);
    case Algorithm::kBinomial:
      return collective == Collective::kReduce    ? prices::BinomialReduce(call)
             : collective == Collective::kGather  ? prices::BinomialGather(call)
             : collective == Collective::kScatter ? prices::BinomialScatter(call)
                                                  : prices::BinomialBroadcast(call);
    case Algorithm::kDissemination:
      return prices::Dissemination(call);
    case Algorithm::kOneShot:
      return collective == Collective::kReduce ? prices::ToRoot(call) : prices::Direct(call);
    case Algorithm::kTwoShot:
      return prices::TwoShot(call);
    case Algorithm::kChain:
      return collective == Collective::kAllReduce ? prices::ChainAllReduce(call)
             : collective == Collective::kReduce  ? prices::ChainReduce(call)
                                                  : prices::Chain(call);
    case Algorithm::kHalvingDoubling:
      return prices::HalvingDoubling(call);
    case Algorithm::kScatterAllGather:
      return prices::ScatterAllGather(call);
    case Algorithm::kBruck:
      return collective == Collective::kAllGather ? prices::BruckAllGather(call) : prices::BruckAllToAll(call);
    case Algorithm::kTwoLevel:
      return collective == Collective::kAllReduce       ? prices::TwoLevelAllReduce(call)
             : collective == Collective::kBroadcast     ? prices::TwoLevelBroadcast(call)
             : collective == Collective::kReduceScatter ? prices::TwoLevelReduceScatter(call)
                                                        : prices::TwoLevelAllGather(call);
    case Algorithm::kPairwise:
      return prices::Direct(call);
    case Algorithm::kLinear:
      return collective == Collective::kGather ? prices::ToRoot(call) : prices::FromRoot(call);
    default:
      return std::numeric_limits<double>::infinity();
  }
}

}  // namespace lockstep
