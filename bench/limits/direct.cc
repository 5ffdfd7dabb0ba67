#include "bench/limits/direct.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "bench/limits/add.h"

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLineElements = 64 / sizeof(float);
constexpr size_t kPieceElements = 1024;  // stays in the nearest cache

size_t RoundedUp(size_t number, size_t multiple) { return (number + multiple - 1) / multiple * multiple; }

}  // namespace

DirectAllReduce::DirectAllReduce(SharedMapping mapping, int ranks, size_t vectors_begin, size_t stride)
    : mapping_(std::move(mapping)),
      ranks_(ranks),
      spins_(SpinsFor(ranks)),
      vectors_begin_(vectors_begin),
      stride_(stride) {}

absl::StatusOr<DirectAllReduce> DirectAllReduce::Create(int ranks, size_t bytes_max) {
  const size_t vectors_begin = RoundedUp(ranks * sizeof(SharedFlag), kPageBytes);
  const size_t stride = RoundedUp(bytes_max, kPageBytes);
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Create(vectors_begin + ranks * stride));
  return DirectAllReduce(std::move(mapping), ranks, vectors_begin, stride);
}

absl::Status DirectAllReduce::Meet(int rank) const {
  SharedFlag* const flags = reinterpret_cast<SharedFlag*>(mapping_.data());
  const uint64_t meeting = flags[rank].own() + 1;
  flags[rank].Raise(meeting);
  for (int other = 0; other < ranks_; ++other) {
    LOCKSTEP_RETURN_IF_ERROR(flags[other].Await(meeting, spins_));
  }
  return absl::OkStatus();
}

void DirectAllReduce::SumBlock(int rank, size_t begin, size_t count) const {
  if (ranks_ == 2) return AddToBoth(vector(rank) + begin, vector(1 - rank) + begin, count);
  for (size_t done = 0; done < count; done += kPieceElements) {
    const size_t piece = std::min(count - done, kPieceElements);
    float sum[kPieceElements];
    std::memcpy(sum, vector(0) + begin + done, piece * sizeof(float));
    for (int other = 1; other < ranks_; ++other) AddTo(sum, vector(other) + begin + done, piece);
    for (int other = 0; other < ranks_; ++other) {
      std::memcpy(vector(other) + begin + done, sum, piece * sizeof(float));
    }
  }
}

absl::Status DirectAllReduce::Run(int rank, size_t count) const {
  LOCKSTEP_RETURN_IF_ERROR(Meet(rank));
  // Whole cache lines, so that no line is written by two ranks.
  const size_t block = RoundedUp((count + ranks_ - 1) / ranks_, kLineElements);
  const size_t begin = std::min(count, rank * block);
  SumBlock(rank, begin, std::min(count - begin, block));
  return Meet(rank);
}

}  // namespace bench
}  // namespace lockstep
