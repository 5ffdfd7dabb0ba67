// The parameter table: what the embedder says once about every parameter whose gradient is to be reduced.

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
  // For people, and compared across ranks. Empty: it has none, and is known by its index. Others are unique in a table.
  std::string name;
  DType dtype = DType::kF32;
  DeviceId device;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // of the gradient, in elements; empty: row-major
  bool ignored = false;          // has no gradient, or one that stays this rank's own
  // Its gradient comes as rows: of the first dimension, some of which have no gradient. At least one dimension, row-major.
  bool sparse = false;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * SizeOf(dtype); }
};

// "parameter 3 'layer1.weight' (f32[512, 784])", "parameter 3 (f32[512, 784])" without a name.
std::string Describe(size_t index, const Parameter& parameter);

// INVALID_ARGUMENT for a table in which nothing is to be reduced or two parameters have the same name (a shared weight is one
// parameter), and naming the first parameter that cannot be reduced: a dtype that is no float and not complex (nothing else
// has a gradient), a bad shape, another device than the others, a sparse gradient on a device (UNIMPLEMENTED), more bytes
// than there are addresses.
absl::Status CheckParameters(absl::Span<const Parameter> parameters);

// Of a table that was checked: where its gradients are.
DeviceId DeviceOf(absl::Span<const Parameter> parameters);

// The table as bytes, for comparison across ranks, and the first difference between two of them as a sentence.
std::string Serialize(absl::Span<const Parameter> parameters);
absl::StatusOr<std::vector<Parameter>> DeserializeParameters(const std::string& bytes);
std::string FirstDifference(int rank_a, absl::Span<const Parameter> a, int rank_b, absl::Span<const Parameter> b);

}  // namespace lockstep

#endif  // REDUCER_PLAN_PARAMETER_H_
