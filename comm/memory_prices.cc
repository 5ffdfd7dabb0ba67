#include "comm/memory_prices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "comm/meeting_costs.h"
#include "comm/stage.h"

namespace lockstep {
namespace {

// Of every byte that a rank works on: what folding all ranks' inputs takes, copying, and writing a fold once more.
struct Work {
  double fold;
  double copy;
  double write;
};

double OnePassNs(Collective collective, int size, double bytes, const Work& work) {
  const double block = bytes / size;
  switch (collective) {
    case Collective::kAllReduce:
      // To everyone, of which once comes with the fold.
      return block * (work.fold + (size - 1) * work.write);
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

// Over the stage, where all ranks do alike: what each does for every byte of a block, in each phase.
struct StagedWork {
  int blocks;
  int scratch_blocks;
  std::vector<double> phases;
};

StagedWork StagedWorkOf(Collective collective, Algorithm algorithm, int size, const Work& work) {
  const double to_others = (size - 1) * work.copy;
  if (algorithm == Algorithm::kStagedTwoShot) return {size, size, {to_others, work.fold + work.write, to_others}};
  switch (collective) {
    case Collective::kAllGather:
      return {size, 1, {work.copy, size * work.copy}};
    case Collective::kReduceScatter:
      return {size, size, {to_others, work.fold}};
    case Collective::kAllToAll:
      return {size, size, {to_others, size * work.copy}};
    default:
      return {1, 1, {work.copy, work.fold}};
  }
}

double StagedNs(const StagedWork& work, int size, double bytes) {
  const double block_bytes = bytes / work.blocks;
  const auto piece_bytes = static_cast<double>(StagePieceBytes(work.scratch_blocks));
  const double rounds = std::max(1.0, std::ceil(block_bytes / piece_bytes));
  const double ticks = rounds + static_cast<double>(work.phases.size()) - 1;
  double ns = (ticks - 1) * MeetingNs(size);
  for (const double byte_ns : work.phases) ns += byte_ns * block_bytes;
  return ns;
}

}  // namespace

double MemoryPriceNs(Collective collective, Algorithm algorithm, int size, int64_t bytes, const Network& network) {
  constexpr double kImpossible = std::numeric_limits<double>::infinity();
  if (size > network.ranks_per_host) return kImpossible;
  const auto vector_bytes = static_cast<double>(bytes);
  const Work work = {(size - 1) * network.reduced_byte_ns, network.copied_byte_ns, network.copied_byte_ns / 2};
  if (algorithm == Algorithm::kOnePass) return 2 * MeetingNs(size) + OnePassNs(collective, size, vector_bytes, work);
  if (IsStaged(algorithm)) {
    return StagedNs(StagedWorkOf(collective, algorithm, size, work), size, vector_bytes);
  }
  if (collective == Collective::kBarrier) return MeetingNs(size);
  const double given_bytes = collective == Collective::kAllGather ? vector_bytes / size : vector_bytes;
  if (given_bytes > kShareBytesMax) return kImpossible;
  return MeetingNs(size) + vector_bytes * (HasReduction(collective) ? work.fold : work.copy);
}

}  // namespace lockstep
