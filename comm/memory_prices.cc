#include "comm/memory_prices.h"

#include <limits>

#include "comm/meeting_costs.h"

namespace lockstep {
namespace {

// Of every byte that a rank works on: what folding all ranks' inputs takes, and writing them down once.
struct Work {
  double fold;
  double copy;
};

double OnePassNs(Collective collective, int size, double bytes, const Work& work) {
  const double block = bytes / size;
  switch (collective) {
    case Collective::kAllReduce:
      // To everyone, of which once comes with the fold.
      return block * (work.fold + (size - 1) * work.copy);
    case Collective::kReduce:
    case Collective::kReduceScatter:
      return block * work.fold;
    case Collective::kGather:
    case Collective::kScatter:
      return block * work.copy;
    case Collective::kBroadcast:
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return bytes * work.copy;
    case Collective::kBarrier:
      break;
  }
  return 0;
}

}  // namespace

double MemoryPriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network) {
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  if (size > network.ranks_per_host) return kImpossible;
  const auto vector_bytes = static_cast<double>(bytes);
  const Work work = {(size - 1) * network.reduced_byte_ns, network.copied_byte_ns};
  if (algorithm == Algorithm::kOnePass) return 2 * MeetingNs(size) + OnePassNs(collective, size, vector_bytes, work);
  if (collective == Collective::kBarrier) return MeetingNs(size);
  const double given_bytes = collective == Collective::kAllGather ? vector_bytes / size : vector_bytes;
  if (given_bytes > kShareBytesMax) return kImpossible;
  return MeetingNs(size) + vector_bytes * (HasReduction(collective) ? work.fold : work.copy);
}

}  // namespace lockstep
