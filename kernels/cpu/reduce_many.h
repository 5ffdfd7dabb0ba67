// Element-wise reduction of any number of arrays on the CPU, in order and in one pass, into any number of targets.
//
// The direct algorithms use this. With every rank's vector at hand (in shared memory, or collected), the owner of a
// piece reduces them in rank order, reads each byte once, and writes the result into every copy. Operations are those
// of kernels/cpu/reduce.h, but 16- and 8-bit floats stay in float32 from the first source to the last and are rounded
// once. Every variant of variant.h gives the same bits.

#ifndef KERNELS_CPU_REDUCE_MANY_H_
#define KERNELS_CPU_REDUCE_MANY_H_

#include "absl/status/statusor.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"

namespace lockstep {
namespace kernels {

// The active variant's function for the pair; valid for ever, from any thread. Resolve it once, outside the hot path.
// Fails where CombineFor does, with its errors.
absl::StatusOr<ReduceManyFunction> ReduceManyFor(DType dtype, ReduceOp op);

// The same for sums whose sources are scaled as they are read, with the bits of Scale in kernels/cpu/scale.h.
// INVALID_ARGUMENT for integers and bool.
absl::StatusOr<ScaledSumFunction> ScaledSumFor(DType dtype);

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_REDUCE_MANY_H_
