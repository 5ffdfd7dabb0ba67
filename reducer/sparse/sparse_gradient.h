// A gradient that has values for some rows of its parameter only, as that of an embedding has, and making one of many
// values for a row. Pure functions: reducer/sparse/sparse_all_gather.h brings the gradients of all ranks together. Nothing
// here ever takes memory for the rows that have no values.

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

// INVALID_ARGUMENT, naming the parameter, and the position and value of the first index that is no row of it; also for
// a dtype that is no float and not complex, for negative sizes, missing values, and more bytes than there are
// addresses.
absl::Status CheckSparseGradient(const SparseGradient& gradient);

// Sums the values of each row in their order, then multiplies the sums by `factor`. The sums of 16- and 8-bit floats
// are kept in float32 and rounded once, others are rounded with each addition (ReduceManyFor); a row's only value stays
// as it is. The product is that of CastScaled, as a dense gradient is scaled on its way into a bucket; a factor of 1
// changes nothing. Errors of CheckSparseGradient. Time: n log n in the number of indices, n in values.
absl::StatusOr<CoalescedGradient> Coalesce(const SparseGradient& gradient, double factor);

}  // namespace lockstep

#endif  // REDUCER_SPARSE_SPARSE_GRADIENT_H_
