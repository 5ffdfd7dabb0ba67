// Casting many tensors at once, for training in mixed precision: the parameters into copies of lower precision that the
// forward pass computes with, and the gradients of those into the float32 ones that the optimiser reads.

#ifndef REDUCER_PIPELINE_CAST_TENSORS_H_
#define REDUCER_PIPELINE_CAST_TENSORS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"

namespace lockstep {

// targets[i] = sources[i], element by element, converted as by CastScaled (kernels/cpu/cast.h): between floats, rounded
// once to nearest even; equal dtypes are copied. Runs on the calling thread, sends nothing.
//
// Of each pair, shapes are equal; both have the same layout without gaps, or one is row-major and the other has gaps.
// They are on the host and share no memory. INVALID_ARGUMENT names the first pair that is not so, and nothing is
// written then.
absl::Status CastTensors(absl::Span<const TensorView> sources, absl::Span<const TensorView> targets);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_CAST_TENSORS_H_
