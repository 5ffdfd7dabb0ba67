// Pattern: contents of vectors whose reduction is known exactly, in whatever order ranks are combined.
//
// The elements are small integers. No partial result rounds or overflows in the dtype, so results are compared bit by bit, without a
// tolerance. The elements repeat after a prime number of them. A block in the wrong place is some power of two away, and so it shows.

#ifndef BENCH_COLLECTIVES_PATTERN_H_
#define BENCH_COLLECTIVES_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"

namespace lockstep {
namespace bench {

// Immutable.
class Pattern {
 public:
  static constexpr int64_t kPeriod = 251;

  // ERRORS  INVALID_ARGUMENT  the op has no meaning for the dtype; or it is the average of floats over a number of ranks that is no power
  //                           of two, whose inputs would have to be rounded
  static absl::StatusOr<Pattern> Create(DType dtype, ReduceOp op, int ranks);

  // By what each rank multiplies its input in a premultiplied sum.
  static constexpr double kFactor = 2;

  // Writes elements [begin, begin + count) of a rank's input.
  void FillInput(Rank rank, int64_t begin, void* target, size_t count) const;

  // How many of the elements differ from elements [begin, begin + count) of a rank's input, or of the result.
  uint64_t CountWrongInput(Rank rank, int64_t begin, const void* data, size_t count) const;
  uint64_t CountWrongResult(int64_t begin, const void* data, size_t count) const;

 private:
  // The first two periods of a vector. A whole period begins at each element of the first one.
  using Tile = std::vector<char>;

  Pattern(DType dtype, size_t element_bytes) : dtype_(dtype), element_bytes_(element_bytes) {}
  Tile MakeTile(const std::vector<int64_t>& values) const;
  uint64_t CountWrong(const Tile& tile, int64_t begin, const void* data, size_t count) const;

  DType dtype_;
  size_t element_bytes_;
  std::vector<Tile> inputs_;  // by rank
  Tile result_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COLLECTIVES_PATTERN_H_
