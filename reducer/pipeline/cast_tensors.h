// Casts many tensors at once, for training in mixed precision: parameters into copies of lower precision for the
// forward pass, and their gradients into float32 for the optimizer.

#ifndef REDUCER_PIPELINE_CAST_TENSORS_H_
#define REDUCER_PIPELINE_CAST_TENSORS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"

namespace lockstep {

// targets[i] = sources[i], element by element, converted as by CastScaled (kernels/cpu/cast.h): between floats, rounded
// once to nearest even; equal dtypes are copied. Runs on the calling thread, sends nothing.
//
// The shapes of a pair are equal. Both have the same layout without gaps, or one is row-major and the other has gaps.
// They are on the host and share no memory. INVALID_ARGUMENT names the first pair that breaks a rule; nothing is
// written then.
absl::Status CastTensors(absl::Span<const TensorView> sources, absl::Span<const TensorView> targets);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_CAST_TENSORS_H_
