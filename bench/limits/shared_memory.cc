#include "bench/limits/shared_memory.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/deadline.h"
#include "base/status.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kPatienceMs = 30'000;
constexpr int kPollsPerLook = 4096;  // at the clock
constexpr int kSpins = 10'000;
constexpr size_t kPageBytes = 4096;
constexpr size_t kLineElements = 64 / sizeof(float);
constexpr size_t kChunkElements = BounceAllReduce::kChunkBytes / sizeof(float);
// While one chunk is added by the other rank, the next is copied in.
constexpr int kSlots = 2;

size_t Chunks(size_t count) { return (count + kChunkElements - 1) / kChunkElements; }

size_t RoundedUp(size_t number, size_t multiple) { return (number + multiple - 1) / multiple * multiple; }

// Polls before a waiting rank gives its core away: many while both ranks can have a core, else one.
int Spins() { return sysconf(_SC_NPROCESSORS_ONLN) >= 2 ? kSpins : 1; }

// A count that one rank raises and others wait for, in a cache line of its own. All zero bytes is a count of zero.
struct alignas(64) SharedFlag {
  std::atomic<uint64_t> count;

  // For the rank that raises it. Relaxed: it reads what it wrote itself.
  uint64_t own() const { return count.load(std::memory_order_relaxed); }
  // Release, paired with Await's acquire: who sees the count sees what was written before it was raised.
  void Raise(uint64_t to) { count.store(to, std::memory_order_release); }
  // DEADLINE_EXCEEDED after half a minute. Gives the core away from time to time once `spins` polls found nothing.
  absl::Status Await(uint64_t at_least, int spins) const;
};

absl::Status SharedFlag::Await(uint64_t at_least, int spins) const {
  int64_t polls = 0;
  Deadline deadline = Deadline::Infinite();
  while (count.load(std::memory_order_acquire) < at_least) {
    if (++polls >= spins) sched_yield();
    if (polls % kPollsPerLook != 0) continue;
    if (deadline.infinite()) deadline = Deadline::AfterMs(kPatienceMs);
    if (deadline.passed()) return absl::DeadlineExceededError("another rank does not move");
  }
  return absl::OkStatus();
}

// Plain loops that the compiler turns into vector instructions, once for every instruction set that matters (the target is built with
// -O3).
#define LOCKSTEP_BENCH_ADD(suffix, attributes)                                                \
  attributes void AddToBoth##suffix(float* __restrict a, float* __restrict b, size_t count) { \
    for (size_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];                             \
  }

LOCKSTEP_BENCH_ADD(Plain, )

#ifdef __x86_64__
LOCKSTEP_BENCH_ADD(Avx2, __attribute__((target("avx2"))))
LOCKSTEP_BENCH_ADD(Avx512, __attribute__((target("avx512f"))))
#endif

absl::StatusOr<SharedMapping> MapShared(size_t bytes, int file) {
  const int anonymous = file == kNoFile ? MAP_ANONYMOUS : 0;
  if (anonymous == 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0)
    return ErrnoStatus(errno, "size shared memory");
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | anonymous, file, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map shared memory");
  return SharedMapping(static_cast<char*>(data), [bytes](char* mapped) { munmap(mapped, bytes); });
}

// Calls visit(address, elements, where they are in the range) for each part of a range.
template <typename Visit>
void ForEachPart(const FloatPieces& vector, size_t begin, size_t count, Visit visit) {
  size_t piece = vector.elements == 0 ? 0 : begin / vector.elements;
  for (size_t done = 0, part = 0; done < count; done += part, ++piece) {
    const size_t at = begin + done - piece * vector.elements;
    part = std::min(vector.elements - at, count - done);
    visit(vector.begins[piece] + at, part, done);
  }
}

}  // namespace

void AddToBoth(float* a, float* b, size_t count) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return AddToBothAvx512(a, b, count);
  if (__builtin_cpu_supports("avx2")) return AddToBothAvx2(a, b, count);
#endif
  AddToBothPlain(a, b, count);
}

absl::StatusOr<DirectAllReduce> DirectAllReduce::Create(size_t bytes_max, int file) {
  static_assert(2 * sizeof(SharedFlag) <= kVectorsBegin);
  const size_t stride = RoundedUp(bytes_max, kPageBytes);
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMapping mapping, MapShared(kVectorsBegin + 2 * stride, file));
  return DirectAllReduce(std::move(mapping), Spins(), stride);
}

absl::Status DirectAllReduce::Barrier(int rank) const {
  SharedFlag* const flags = reinterpret_cast<SharedFlag*>(mapping_.get());
  const uint64_t barrier = flags[rank].own() + 1;
  flags[rank].Raise(barrier);
  return flags[1 - rank].Await(barrier, spins_);
}

absl::Status DirectAllReduce::Run(int rank, size_t count) const {
  LOCKSTEP_RETURN_IF_ERROR(Barrier(rank));
  // Whole cache lines, so that no line is written by both ranks.
  const size_t half = RoundedUp((count + 1) / 2, kLineElements);
  const size_t begin = std::min(count, rank * half);
  AddToBoth(vector(rank) + begin, vector(1 - rank) + begin, std::min(count - begin, half));
  return Barrier(rank);
}

struct BounceAllReduce::Mailbox {
  SharedFlag offered;  // by its rank: chunks copied in
  SharedFlag added;    // by the other rank: chunks that are sums now
  alignas(64) float slots[kSlots][kChunkElements];
};

absl::StatusOr<BounceAllReduce> BounceAllReduce::Create(int file) {
  LOCKSTEP_ASSIGN_OR_RETURN(SharedMapping mapping, MapShared(2 * sizeof(Mailbox), file));
  return BounceAllReduce(std::move(mapping), Spins());
}

BounceAllReduce::Mailbox* BounceAllReduce::mailbox(int rank) const {
  return reinterpret_cast<Mailbox*>(mapping_.get()) + rank;
}

absl::Status BounceAllReduce::Run(int rank, const FloatPieces& vector, size_t count) const {
  Mailbox* const own = mailbox(rank);
  Mailbox* const others = mailbox(1 - rank);
  const size_t half = std::min(count, ((count + 1) / 2 + kLineElements - 1) / kLineElements * kLineElements);
  // The half that the other rank sums, and the one that this rank does.
  const size_t given = rank == 0 ? half : 0;
  const size_t given_count = rank == 0 ? count - half : half;
  const size_t kept = rank == 0 ? 0 : half;
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
      float* const slot = own->slots[chunk % kSlots];
      ForEachPart(vector, given + begin, std::min(given_count - begin, kChunkElements),
                  [&](const float* part, size_t elements, size_t at) {
                    std::memcpy(slot + at, part, elements * sizeof(float));
                  });
      own->offered.Raise(chunk + 1);
    }
    if (step < Chunks(kept_count)) {
      const uint64_t chunk = added_before + step;
      LOCKSTEP_RETURN_IF_ERROR(others->offered.Await(chunk + 1, spins_));
      const size_t begin = step * kChunkElements;
      float* const slot = others->slots[chunk % kSlots];
      ForEachPart(vector, kept + begin, std::min(kept_count - begin, kChunkElements),
                  [&](float* part, size_t elements, size_t at) { AddToBoth(part, slot + at, elements); });
      others->added.Raise(chunk + 1);
    }
    if (step > 0 && step <= Chunks(given_count)) {
      const uint64_t chunk = offered_before + step - 1;
      LOCKSTEP_RETURN_IF_ERROR(own->added.Await(chunk + 1, spins_));
      const size_t begin = (step - 1) * kChunkElements;
      const float* const slot = own->slots[chunk % kSlots];
      ForEachPart(
          vector, given + begin, std::min(given_count - begin, kChunkElements),
          [&](float* part, size_t elements, size_t at) { std::memcpy(part, slot + at, elements * sizeof(float)); });
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::bench
