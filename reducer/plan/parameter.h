// The parameter table: describes every parameter whose gradient is to be reduced.

#ifndef REDUCER_PLAN_PARAMETER_H_
#define REDUCER_PLAN_PARAMETER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/types/dtype.h"

namespace lockstep {

struct Parameter {
  // For people, and compared across ranks. Unique in a table, or empty: then the parameter is known by its index.
  std::string name;
  DType dtype = DType::kF32;
  DeviceId device;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // of the gradient, in elements; empty: row-major
  bool ignored = false;          // has no gradient, or one that stays this rank's own
  // Its gradient comes as some rows of the first dimension. At least one dimension, row-major.
  bool sparse = false;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }
};

// "parameter 3 'layer1.weight' (f32[512, 784])", "parameter 3 (f32[512, 784])" without a name.
std::string Describe(size_t index, const Parameter& parameter);

// INVALID_ARGUMENT if nothing is to be reduced, or if two parameters have the same name (a shared weight is one
// parameter). Otherwise names the first parameter that cannot be reduced: its dtype is neither float nor complex, its
// shape is bad, its device is not that of the others, it has more bytes than there are addresses, or it is sparse on a
// device (UNIMPLEMENTED).
absl::Status CheckParameters(absl::Span<const Parameter> parameters);

// The device of the gradients of a checked table.
DeviceId DeviceOf(absl::Span<const Parameter> parameters);

// Serialize returns the table as bytes, for comparison across ranks. FirstDifference returns the first difference between two tables as
// FAILED_PRECONDITION with the parameter, or OK if the tables are equal.
std::string Serialize(absl::Span<const Parameter> parameters);
absl::StatusOr<std::vector<Parameter>> DeserializeParameters(const std::string& bytes);
absl::Status FirstDifference(int rank_a, absl::Span<const Parameter> a, int rank_b, absl::Span<const Parameter> b);

}  // namespace lockstep

#endif  // REDUCER_PLAN_PARAMETER_H_
