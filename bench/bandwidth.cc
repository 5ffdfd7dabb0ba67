#include "bench/bandwidth.h"

namespace lockstep {
namespace bench {

double AlgorithmBandwidth(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

double BusFactor(const Exercise& exercise, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (exercise.messages) return 1;
  switch (exercise.collective) {
    case Collective::kAllReduce:
      return 2 * others;
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return others;
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kBarrier:
      break;
  }
  return 1;
}

}  // namespace bench
}  // namespace lockstep
