#include "bench/limits/bounce.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "bench/limits/add.h"

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kChunkElements = BounceAllReduce::kChunkBytes / sizeof(float);
constexpr size_t kLineElements = 64 / sizeof(float);
// While one chunk is added by the other rank, the next is copied in.
constexpr int kSlots = 2;

size_t Chunks(size_t count) { return (count + kChunkElements - 1) / kChunkElements; }

}  // namespace

struct BounceAllReduce::Mailbox {
  SharedFlag offered;  // by its rank: chunks copied in
  SharedFlag added;    // by the other rank: chunks that are sums now
  alignas(64) float slots[kSlots][kChunkElements];
};

absl::StatusOr<BounceAllReduce> BounceAllReduce::Create() {
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMapping mapping, SharedMapping::Create(2 * sizeof(Mailbox)));
  return BounceAllReduce(std::move(mapping));
}

BounceAllReduce::Mailbox* BounceAllReduce::mailbox(int rank) const {
  return reinterpret_cast<Mailbox*>(mapping_.data()) + rank;
}

absl::Status BounceAllReduce::Run(int rank, float* vector, size_t count) const {
  Mailbox* const own = mailbox(rank);
  Mailbox* const others = mailbox(1 - rank);
  const size_t half = std::min(count, ((count + 1) / 2 + kLineElements - 1) / kLineElements * kLineElements);
  // The half that the other rank sums, and the one that this rank does.
  float* const given = rank == 0 ? vector + half : vector;
  const size_t given_count = rank == 0 ? count - half : half;
  float* const kept = rank == 0 ? vector : vector + half;
  const size_t kept_count = count - given_count;
  // Flags count the chunks of all calls.
  const uint64_t offered_before = own->offered.own();
  const uint64_t added_before = others->added.own();

  const size_t steps = std::max(Chunks(given_count), Chunks(kept_count)) + 1;
  for (size_t step = 0; step < steps; ++step) {
    if (step < Chunks(given_count)) {
      // The slot is free: its chunk was collected in the step before this one or earlier.
      const uint64_t chunk = offered_before + step;
      const size_t begin = step * kChunkElements;
      std::memcpy(own->slots[chunk % kSlots], given + begin,
                  std::min(given_count - begin, kChunkElements) * sizeof(float));
      own->offered.Raise(chunk + 1);
    }
    if (step < Chunks(kept_count)) {
      const uint64_t chunk = added_before + step;
      LOCKSTEP_RETURN_IF_ERROR(others->offered.Await(chunk + 1, spins_));
      const size_t begin = step * kChunkElements;
      AddToBoth(kept + begin, others->slots[chunk % kSlots], std::min(kept_count - begin, kChunkElements));
      others->added.Raise(chunk + 1);
    }
    if (step > 0 && step <= Chunks(given_count)) {
      const uint64_t chunk = offered_before + step - 1;
      LOCKSTEP_RETURN_IF_ERROR(own->added.Await(chunk + 1, spins_));
      const size_t begin = (step - 1) * kChunkElements;
      std::memcpy(given + begin, own->slots[chunk % kSlots],
                  std::min(given_count - begin, kChunkElements) * sizeof(float));
    }
  }
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep
