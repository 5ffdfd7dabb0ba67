// The limits of an all-reduce between processes that share memory, with no call, no check and no second message in the way.
//
// Both are for two ranks. DirectAllReduce is for processes that map each other's vectors. Each rank owns half of the sum. It waits
// until the other has come, sums its half straight out of both vectors into both, in one pass, and waits until the other has done so.
// It copies nothing that an all-reduce need not move.
//
// BounceAllReduce is for ranks that share memory, but not their vectors. Each rank owns half of the sum. It copies the other rank's
// half into a mailbox that both map, chunk by chunk. The owner adds each chunk to its own vector and leaves the sum in the mailbox. The
// first rank copies the sum back. So of every two bytes one is copied in and out, and one is added; no scheme through private vectors
// moves less. The vectors may lie in pieces.
//
// THREADS  Ranks are threads that share one object, or processes that each make one with the same file. Each rank calls from one thread.
//          All state is in the shared memory.
// ERRORS   RESOURCE_EXHAUSTED  Create(): there is not so much address space
//          DEADLINE_EXCEEDED   Run(): another rank does not come for half a minute

#ifndef BENCH_LIMITS_SHARED_MEMORY_H_
#define BENCH_LIMITS_SHARED_MEMORY_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep::bench {

// a[i] = b[i] = a[i] + b[i] in one pass, as fast as the processor does it; on purpose not Lockstep's kernels. The vectors must not
// overlap.
void AddToBoth(float* a, float* b, size_t count);

// Memory of zeros, shared by the threads of a process or, with a file, by all processes that map it. Pages are made when first touched.
using SharedMapping = std::shared_ptr<char>;
// `file` below is the descriptor of an empty file of memory (memfd_create).
constexpr int kNoFile = -1;

class DirectAllReduce {
 public:
  static absl::StatusOr<DirectAllReduce> Create(size_t bytes_max, int file = kNoFile);

  // Of `bytes_max` bytes.
  float* vector(int rank) const { return reinterpret_cast<float*>(mapping_.get() + kVectorsBegin + rank * stride_); }

  // The first `count` elements of both vectors become their sum.
  absl::Status Run(int rank, size_t count) const;

 private:
  static constexpr size_t kVectorsBegin = 4096;  // the page before them has the ranks' flags

  DirectAllReduce(SharedMapping mapping, int spins, size_t stride)
      : mapping_(std::move(mapping)), spins_(spins), stride_(stride) {}
  // Returns once the other rank has called it as often as this one.
  absl::Status Barrier(int rank) const;

  SharedMapping mapping_;
  int spins_;
  size_t stride_;
};

// A vector that lies in pieces of equal length, but for the last, which is not longer.
struct FloatPieces {
  float* const* begins = nullptr;
  size_t elements = 0;  // of a piece
};

class BounceAllReduce {
 public:
  static constexpr size_t kChunkBytes = size_t{128} << 10;

  static absl::StatusOr<BounceAllReduce> Create(int file = kNoFile);

  // The vector, of `count` elements, is private to the calling rank and becomes the sum of both.
  absl::Status Run(int rank, const FloatPieces& vector, size_t count) const;
  absl::Status Run(int rank, float* vector, size_t count) const {
    return Run(rank, FloatPieces{&vector, count}, count);
  }

 private:
  struct Mailbox;  // of one rank: what it offers to the other

  BounceAllReduce(SharedMapping mapping, int spins) : mapping_(std::move(mapping)), spins_(spins) {}
  Mailbox* mailbox(int rank) const;

  SharedMapping mapping_;
  int spins_;
};

}  // namespace lockstep::bench

#endif  // BENCH_LIMITS_SHARED_MEMORY_H_
