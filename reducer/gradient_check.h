// Checks that a gradient matches its parameter's row of the table.
// COST  little for a gradient that matches; a microsecond each if pointers are checked.

#ifndef REDUCER_GRADIENT_CHECK_H_
#define REDUCER_GRADIENT_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "reducer/pipeline/bucket_memory.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

class GradientCheck {
 public:
  // The parameters were checked, and outlive this.
  explicit GradientCheck(absl::Span<const Parameter> parameters);

  // Whether pointers are checked, too.
  void set_pointers(bool pointers) { pointers_ = pointers; }
  // In bucket views: the memory of the buckets, and the version of their plan. Borrows both.
  void set_views(const BucketMemory* memory, const int64_t* plan_version) {
    memory_ = memory;
    plan_version_ = plan_version;
  }

  // INVALID_ARGUMENT, which names the call: the index is out of range, the parameter is ignored, or it is not of the
  // kind `sparse`.
  absl::Status Index(size_t index, bool sparse, absl::string_view call) const;

  // `view` is where the gradient lives in its bucket, or null. A parameter whose strides leave gaps is row-major there.
  // ERRORS  INVALID_ARGUMENT     it does not match: the message says what
  //         FAILED_PRECONDITION  it lies in the buckets' memory, but not at `view`
  absl::Status Gradient(size_t index, const TensorView& gradient, const void* view) const;
  // The same for the target of an average: of any real float dtype (complex: of the same dtype).
  absl::Status Target(size_t index, const TensorView& target, const void* view) const;
  absl::Status Sparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values) const;

 private:
  bool LayoutFits(size_t index, const TensorView& gradient, const void* view) const;
  absl::Status Place(size_t index, const TensorView& tensor, const void* view, absl::string_view what) const;

  const absl::Span<const Parameter> parameters_;
  bool pointers_ = false;
  const BucketMemory* memory_ = nullptr;  // null: gradients do not live in buckets
  const int64_t* plan_version_ = nullptr;
  // By parameter; only their geometry is looked at. Nothing for ignored ones.
  std::vector<TensorView> like_;
  std::vector<TensorView> like_in_bucket_;
};

}  // namespace lockstep

#endif  // REDUCER_GRADIENT_CHECK_H_
