// The limits of an all-reduce between processes that share memory, with no call, no check and no second message in the way.
//
// DirectAllReduce is for processes that map each other's vectors. Every rank owns a block. It waits until all have come, sums its block
// straight out of all vectors, writes the sum straight into all of them, in one pass where there are two ranks, and waits until all have
// done so. Nothing is copied that an all-reduce need not move.
//
// BounceAllReduce is for two that share memory, but not the vectors. Each rank owns half of the sum. It copies the other rank's half,
// chunk by chunk, into a mailbox that both map; the owner adds each chunk to its own vector and leaves the sum in the mailbox, from where
// the first copies it back. So of every two bytes one is copied in and out, and one is added: no scheme through private vectors moves
// less.
//
// Ranks are threads that share one of these, or processes that each make one with the same file. All state is in the shared memory; each
// rank calls from one thread. DEADLINE_EXCEEDED when another rank does not come for half a minute.

#ifndef BENCH_LIMITS_SHARED_MEMORY_H_
#define BENCH_LIMITS_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {
namespace bench {

// Sums of float32 vectors as fast as the processor does them, apart from Lockstep's kernels on purpose. The vectors must not overlap.
// a[i] = b[i] = a[i] + b[i], in one pass.
void AddToBoth(float* a, float* b, size_t count);
// a[i] += b[i].
void AddTo(float* a, const float* b, size_t count);

// Memory of zeros that is the same for all threads of a process and, with the descriptor of an empty file of memory (memfd_create), for all
// processes that map it. Pages are made when first touched.
using SharedMapping = std::shared_ptr<char>;
constexpr int kNoFile = -1;
// RESOURCE_EXHAUSTED when there is not so much address space.
absl::StatusOr<SharedMapping> MapShared(size_t bytes, int file = kNoFile);

class DirectAllReduce {
 public:
  static absl::StatusOr<DirectAllReduce> Create(int ranks, size_t bytes_max, int file = kNoFile);

  // Of `bytes_max` bytes.
  float* vector(int rank) const { return reinterpret_cast<float*>(mapping_.get() + vectors_begin_ + rank * stride_); }

  // The first `count` elements of every rank's vector become their sum.
  absl::Status Run(int rank, size_t count) const;

 private:
  DirectAllReduce(SharedMapping mapping, int ranks, size_t vectors_begin, size_t stride);
  // Returns once every rank has called it as often as this one.
  absl::Status Barrier(int rank) const;
  void SumBlock(int rank, size_t begin, size_t count) const;

  SharedMapping mapping_;
  int ranks_;
  int spins_;
  size_t vectors_begin_;
  size_t stride_;
};

class BounceAllReduce {
 public:
  static constexpr size_t kChunkBytes = size_t{128} << 10;

  static absl::StatusOr<BounceAllReduce> Create(int file = kNoFile);

  // `vector`, private to the calling rank, becomes the sum of both.
  absl::Status Run(int rank, float* vector, size_t count) const;

 private:
  struct Mailbox;  // of one rank: what it offers to the other

  BounceAllReduce(SharedMapping mapping, int spins) : mapping_(std::move(mapping)), spins_(spins) {}
  Mailbox* mailbox(int rank) const;

  SharedMapping mapping_;
  int spins_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_SHARED_MEMORY_H_
