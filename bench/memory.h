// Memory: vectors for a benchmark to work on, one size for all rows, touched before anything is timed.

#ifndef BENCH_MEMORY_H_
#define BENCH_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace lockstep {
namespace bench {

class Memory {
 public:
  // RESOURCE_EXHAUSTED when there is not so much.
  static absl::StatusOr<Memory> Create(int vectors, size_t vector_bytes);

  int vectors() const { return static_cast<int>(vectors_.size()); }
  size_t vector_bytes() const { return vector_bytes_; }
  // Begins at a page's begin.
  char* vector(int index) const { return vectors_[index].get(); }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::vector<std::unique_ptr<char, Free>> vectors_;
  size_t vector_bytes_ = 0;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_MEMORY_H_
