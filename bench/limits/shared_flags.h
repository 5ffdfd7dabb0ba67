// What two shared-memory prototypes need between processes: memory that forked ranks share, and flags in it that they
// wait for by spinning.

#ifndef BENCH_LIMITS_SHARED_FLAGS_H_
#define BENCH_LIMITS_SHARED_FLAGS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {
namespace bench {

// Memory of zeros that is the same in this process and in those it forks afterwards. Pages are made when first touched.
class SharedMapping {
 public:
  // RESOURCE_EXHAUSTED when there is not so much address space.
  static absl::StatusOr<SharedMapping> Create(size_t bytes);
  ~SharedMapping();
  SharedMapping(SharedMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMapping& operator=(SharedMapping&&) = delete;

  char* data() const { return data_; }

 private:
  SharedMapping(char* data, size_t bytes) : data_(data), bytes_(bytes) {}

  char* data_;
  size_t bytes_;
};

// A count that one rank raises and others wait for, in a cache line of its own. All zero bytes is a count of zero.
struct alignas(64) SharedFlag {
  std::atomic<uint64_t> count;

  // For the rank that raises it.
  uint64_t own() const { return count.load(std::memory_order_relaxed); }
  // Release, paired with Await's acquire: who sees the count sees what was written before it was raised.
  void Raise(uint64_t to) { count.store(to, std::memory_order_release); }
  // DEADLINE_EXCEEDED after half a minute. Gives the core away from time to time once `spins` polls found nothing.
  absl::Status Await(uint64_t at_least, int spins) const;
};

// Polls before a waiting rank gives its core away: many while every rank can have a core, else one.
int SpinsFor(int ranks);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_SHARED_FLAGS_H_
