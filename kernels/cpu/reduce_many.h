// Element-wise reduction of any number of arrays on the CPU, in order and in one pass, into any number of targets.
//
// What the direct algorithms are made of: with every rank's vector at hand (in shared memory, or collected), the owner
// of a piece folds all of them in rank order, reading each byte once, and writes the result into every copy. Operations
// mean what kernels/cpu/reduce.h says. What differs is rounding: 16- and 8-bit floats stay in float32 from the first
// source to the last, and are rounded once. Every variant of variant.h gives the same bits.

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

// Likewise of sums whose sources are scaled as they are read, with the bits that Scale in kernels/cpu/scale.h would give
// them. INVALID_ARGUMENT where that cannot be: for integers and bool.
absl::StatusOr<ScaledSumFunction> ScaledSumFor(DType dtype);

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_REDUCE_MANY_H_
