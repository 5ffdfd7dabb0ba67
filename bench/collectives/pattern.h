// Pattern: contents of vectors whose reduction is known exactly, whatever the order in which ranks are combined.
//
// Every rank's elements are small integers, so few and so small that no partial result rounds or overflows in the dtype: what comes out
// wrong is wrong, and no tolerance is needed. They repeat after a prime number of elements, so that a block in the wrong place, which is
// some power of two away, shows.

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

  // INVALID_ARGUMENT for an op without meaning for the dtype, and for the average of floats over a number of ranks that is no power of
  // two: its inputs would have to be rounded.
  static absl::StatusOr<Pattern> Create(DType dtype, ReduceOp op, int ranks);

  // What each rank multiplies its input by, in a premultiplied sum.
  static constexpr double kFactor = 2;

  // Writes elements [begin, begin + count) of a rank's input, or of the result.
  void FillInput(Rank rank, int64_t begin, void* target, size_t count) const;
  void FillResult(int64_t begin, void* target, size_t count) const;

  // How many of the elements differ from elements [begin, begin + count) of a rank's input, or of the result.
  uint64_t CountWrongInput(Rank rank, int64_t begin, const void* data, size_t count) const;
  uint64_t CountWrongResult(int64_t begin, const void* data, size_t count) const;

 private:
  // One vector, from element 0: two periods, so that a whole one lies behind each place in the first.
  using Tile = std::vector<char>;

  Pattern(DType dtype, size_t element_bytes) : dtype_(dtype), element_bytes_(element_bytes) {}
  Tile MakeTile(const std::vector<int64_t>& values) const;
  void Fill(const Tile& tile, int64_t begin, void* target, size_t count) const;
  uint64_t CountWrong(const Tile& tile, int64_t begin, const void* data, size_t count) const;

  DType dtype_;
  size_t element_bytes_;
  std::vector<Tile> inputs_;  // by rank
  Tile result_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COLLECTIVES_PATTERN_H_
