// DirectAllReduce: the limit of an all-reduce between processes that map each other's vectors.
//
// Every rank owns a block. It waits until all have come, sums its block straight out of all vectors, writes the sum
// straight into all of them, in one pass where there are two ranks, and waits until all have done so. Nothing is copied
// that an all-reduce need not move, and there is no call, no check and no second message in the way.

#ifndef BENCH_LIMITS_DIRECT_H_
#define BENCH_LIMITS_DIRECT_H_

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/limits/shared_flags.h"

namespace lockstep {
namespace bench {

// Made by one process, which then forks the ranks (or starts them as threads). All state is in the shared memory; each
// rank calls from one thread.
class DirectAllReduce {
 public:
  static absl::StatusOr<DirectAllReduce> Create(int ranks, size_t bytes_max);

  // Of `bytes_max` bytes.
  float* vector(int rank) const { return reinterpret_cast<float*>(mapping_.data() + vectors_begin_ + rank * stride_); }

  // The first `count` elements of every rank's vector become their sum. DEADLINE_EXCEEDED when a rank does not come.
  absl::Status Run(int rank, size_t count) const;

 private:
  DirectAllReduce(SharedMapping mapping, int ranks, size_t vectors_begin, size_t stride);
  // Returns once every rank has called it as often as this one.
  absl::Status Meet(int rank) const;
  void SumBlock(int rank, size_t begin, size_t count) const;

  SharedMapping mapping_;
  int ranks_;
  int spins_;
  size_t vectors_begin_;
  size_t stride_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_DIRECT_H_
