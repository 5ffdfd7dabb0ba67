// FoldKernels: what a collective computes on a device, in the order of a stream, with every rank's array at hand. One
// interface for every device, so that who uses it is tested without one.
//
// Everything returns once it is issued; memory is borrowed until it is done. Thread-safe. INVALID_ARGUMENT for
// dtypes, operations and factors that do not go together.

#ifndef KERNELS_FOLD_KERNELS_H_
#define KERNELS_FOLD_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/reduce_op.h"

namespace lockstep {
namespace kernels {

// So many arrays are folded by one call.
inline constexpr size_t kFoldSourcesMax = 8;

class FoldKernels {
 public:
  virtual ~FoldKernels() = default;
  FoldKernels(const FoldKernels&) = delete;
  FoldKernels& operator=(const FoldKernels&) = delete;

  // Has the device load the kernels, which it otherwise does at the first launch of each: that may wait for work which
  // waits for others. UNAVAILABLE where there are none for it.
  virtual absl::Status Load(const Device& device) const = 0;

  // target[i] = ((sources[0][i] * factor op sources[1][i] * factor) op ...), to the bits of
  // kernels/cpu/reduce_many.h: narrow floats are rounded once, at the end. 1 to kFoldSourcesMax sources; the target
  // may be one of them. A factor other than 1 only of sums of floats and complex numbers.
  virtual absl::Status Fold(DType dtype, ReduceOp op, void* target, absl::Span<const void* const> sources, size_t count,
                            double factor, Stream& stream) const = 0;

  // target[i] = source[i] * factor, of floats and complex numbers: kernels/cpu/scale.h.
  virtual absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor,
                             Stream& stream) const = 0;

  // data[i] = data[i] / divisor, of integers, rounded toward zero.
  virtual absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor,
                                        Stream& stream) const = 0;

 protected:
  FoldKernels() = default;
};

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_FOLD_KERNELS_H_
