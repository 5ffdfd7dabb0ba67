// Sparse gradients: they have values only for some rows of their parameter, like that of an embedding. Pure functions,
// which take no memory for rows without values. reducer/sparse/sparse_all_gather.h combines the gradients of all ranks.

#ifndef REDUCER_SPARSE_SPARSE_GRADIENT_H_
#define REDUCER_SPARSE_SPARSE_GRADIENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/types/dtype.h"

namespace lockstep {

// Borrows everything.
struct SparseGradient {
  absl::string_view name;  // of the parameter, for messages
  DType dtype = DType::kF32;
  int64_t rows = 0;  // of the parameter, which as a dense one has rows x row_elements
  int64_t row_elements = 0;
  absl::Span<const int64_t>
      indices;                   // the rows that have values, in any order; of a repeated one the values are summed
  const void* values = nullptr;  // one row for each index, one behind the other; of any alignment

  size_t bytes() const { return indices.size() * static_cast<size_t>(row_elements) * SizeOf(dtype); }
};

// One row of values for each row that has any.
struct CoalescedGradient {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t row_elements = 0;
  std::vector<int64_t> indices;  // ascending, each once
  std::vector<char> values;      // of rows as in `indices`, aligned for any dtype

  // Borrows from this.
  SparseGradient view(absl::string_view name) const {
    return {name, dtype, rows, row_elements, indices, values.data()};
  }
};

// "sparse gradient of 'embedding' (f32, 50000 rows of 512)".
std::string Describe(const SparseGradient& gradient);

// INVALID_ARGUMENT, which names the parameter: an index is no row (the first one, with its position), the dtype is
// neither float nor complex, a size is negative, values are missing, or there are more bytes than addresses.
absl::Status CheckSparseGradient(const SparseGradient& gradient);

// Sums the values of each row in their order, then multiplies the sums by `factor`. Sums of 16- and 8-bit floats are
// kept in float32 and rounded once; others are rounded with each addition (ReduceManyFor). A row's only value stays as
// it is. The product is that of CastScaled; a factor of 1 changes nothing. ERRORS those of CheckSparseGradient. COST n
// log n in the number of indices, n in values.
absl::StatusOr<CoalescedGradient> Coalesce(const SparseGradient& gradient, double factor);

}  // namespace lockstep

#endif  // REDUCER_SPARSE_SPARSE_GRADIENT_H_
