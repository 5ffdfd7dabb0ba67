// BounceAllReduce: the limit of an all-reduce between two processes that share memory, but not the vectors.
//
// Each rank owns half of the sum. It copies the other rank's half, chunk by chunk, into a mailbox that both map; the
// owner adds each chunk to its own vector and leaves the sum in the mailbox, from where the first copies it back. So of
// every two bytes one is copied in and out, and one is added: no scheme through private vectors moves less.

#ifndef BENCH_LIMITS_BOUNCE_H_
#define BENCH_LIMITS_BOUNCE_H_

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/limits/shared_flags.h"

namespace lockstep {
namespace bench {

// Made by one process, which then forks the two ranks (or starts them as threads). All state is in the shared memory;
// each rank calls from one thread.
class BounceAllReduce {
 public:
  static constexpr size_t kChunkBytes = size_t{128} << 10;

  static absl::StatusOr<BounceAllReduce> Create();

  // `vector`, private to the calling rank, becomes the sum of both. DEADLINE_EXCEEDED when the other rank does not
  // come.
  absl::Status Run(int rank, float* vector, size_t count) const;

 private:
  struct Mailbox;  // of one rank: what it offers to the other

  explicit BounceAllReduce(SharedMapping mapping) : mapping_(std::move(mapping)), spins_(SpinsFor(2)) {}
  Mailbox* mailbox(int rank) const;

  SharedMapping mapping_;
  int spins_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_BOUNCE_H_
