#include "reducer/sparse/sparse_gradient.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/reduce.h"

namespace lockstep {

std::string Describe(const SparseGradient& gradient) {
  return absl::StrCat("sparse gradient of '", gradient.name, "' (", Name(gradient.dtype), ", ", gradient.rows,
                      " rows of ", gradient.row_elements, ")");
}

absl::Status CheckSparseGradient(const SparseGradient& gradient) {
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(gradient), ": ", why));
  };
  if (!IsFloat(gradient.dtype) && !IsComplex(gradient.dtype)) return bad("gradients are floats or complex numbers");
  if (gradient.rows < 0 || gradient.row_elements < 0) return bad("a size is negative");
  int64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(gradient.indices.size()), gradient.row_elements, &bytes) ||
      __builtin_mul_overflow(bytes, static_cast<int64_t>(SizeOf(gradient.dtype)), &bytes)) {
    return bad(absl::StrCat(gradient.indices.size(), " of them have more bytes than there are addresses"));
  }
  if (bytes > 0 && gradient.values == nullptr) return bad("there are indices, but no values");
  for (size_t i = 0; i < gradient.indices.size(); ++i) {
    const int64_t row = gradient.indices[i];
    if (row < 0 || row >= gradient.rows) {
      return bad(absl::StrCat("the index at position ", i, " is ", row, ", which is none of its rows"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CoalescedGradient> Coalesce(const SparseGradient& gradient, double factor) {
  LOCKSTEP_RETURN_IF_ERROR(CheckSparseGradient(gradient));
  LOCKSTEP_ASSIGN_OR_RETURN(const ReduceManyFunction sum, kernels::ReduceManyFor(gradient.dtype, ReduceOp::kSum));
  const absl::Span<const int64_t> indices = gradient.indices;

  // Positions by row, and for each row in their order.
  std::vector<size_t> order(indices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return indices[a] < indices[b]; });

  CoalescedGradient result;
  result.dtype = gradient.dtype;
  result.rows = gradient.rows;
  result.row_elements = gradient.row_elements;
  for (const size_t position : order) {
    if (result.indices.empty() || result.indices.back() != indices[position]) {
      result.indices.push_back(indices[position]);
    }
  }

  const size_t row_bytes = static_cast<size_t>(gradient.row_elements) * SizeOf(gradient.dtype);
  if (row_bytes == 0) return result;
  result.values.resize(result.indices.size() * row_bytes);
  const char* const values = static_cast<const char*>(gradient.values);
  std::vector<const void*> sources;
  for (size_t row = 0, next = 0; row < result.indices.size(); ++row) {
    sources.clear();
    for (; next < order.size() && indices[order[next]] == result.indices[row]; ++next) {
      sources.push_back(values + order[next] * row_bytes);
    }
    void* const target = result.values.data() + row * row_bytes;
    sum(&target, 1, sources.data(), sources.size(), gradient.row_elements);
  }
  const size_t elements = result.indices.size() * static_cast<size_t>(gradient.row_elements);
  LOCKSTEP_RETURN_IF_ERROR(kernels::CastScaled(gradient.dtype, result.values.data(), gradient.dtype,
                                               result.values.data(), elements, factor));
  return result;
}

}  // namespace lockstep
