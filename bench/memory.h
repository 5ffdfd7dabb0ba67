// Memory: vectors for a benchmark to work on, one size for all rows, touched before anything is timed.

#ifndef BENCH_MEMORY_H_
#define BENCH_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"

namespace lockstep {
namespace bench {

class Memory {
 public:
  // Ordinary memory. RESOURCE_EXHAUSTED when there is not so much.
  static absl::StatusOr<Memory> Create(int vectors, size_t vector_bytes);
  // Of the communicator's allocator, all ranks together. Errors of Communicator::Allocate.
  static absl::StatusOr<Memory> Allocate(Communicator* communicator, int vectors, size_t vector_bytes);

  int vectors() const { return static_cast<int>(vectors_.size()); }
  size_t vector_bytes() const { return vector_bytes_; }
  // Begins at a page's begin.
  char* vector(int index) const { return vectors_[index]; }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::vector<char*> vectors_;
  size_t vector_bytes_ = 0;
  // What the vectors lie in.
  std::vector<std::unique_ptr<char, Free>> ordinary_;
  std::vector<std::unique_ptr<SymmetricBuffer>> allocated_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_MEMORY_H_
