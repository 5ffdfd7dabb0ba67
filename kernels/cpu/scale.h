// Multiplying an array by a factor, and dividing integers, on the CPU. NaN and rounding as in kernels/cpu/reduce.h.

#ifndef KERNELS_CPU_SCALE_H_
#define KERNELS_CPU_SCALE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/types/dtype.h"

namespace lockstep {
namespace kernels {

// target[i] = source[i] * factor. `target` may equal `source` exactly and overlaps it in no other way; pointers need no
// alignment beyond a byte.
//
// f32 and narrower multiply in float32 by the factor rounded to it, then round to the dtype; f64 in double; complex
// numbers component by component, in float32 and double. INVALID_ARGUMENT for integers (see DivideTowardZero) and bool.
absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor);

// data[i] = data[i] / divisor, rounded toward zero: how an integer average ends. INVALID_ARGUMENT when the dtype is no
// integer or the divisor is not positive.
absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor);

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_SCALE_H_
