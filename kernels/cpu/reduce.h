// Element-wise reduction on the CPU: of two arrays, and of any number of them.
//
// Numbers (every variant of variant.h gives the same bits, and no operation depends on the order of its operands):
//   f16, bf16, f8*    computed in float32, rounded once, to nearest even
//   NaN results       canonical: positive, quiet, no payload (f32 0x7FC00000, f16 0x7E00, bf16 0x7FC0, f8e4m3 0x7F, ...)
//   min, max          IEEE 754-2019 minimum and maximum: NaN propagates, -0 < +0
//   integers          wrap around in sum and prod
//   bool              one byte, any value but 0 is true, the result is 0 or 1; sum and max are or, prod and min are and
//   complex prod      (ac - bd) + (ad + bc)i with every operation rounded
// The caller's floating-point environment is the default one (base/default_floats.h).

#ifndef KERNELS_CPU_REDUCE_H_
#define KERNELS_CPU_REDUCE_H_

#include "absl/status/statusor.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"

namespace lockstep::kernels {

// The active variant's function for the pair; valid for ever, from any thread. Resolve it once, outside the hot path.
//
// INVALID_ARGUMENT if the pair has no meaning (CheckDefined), and for kAvg and kPremulSum. These are a sum and a
// scaling: take the function of kSum, and kernels/cpu/cast.h.
absl::StatusOr<CombineFunction> CombineFor(DType dtype, ReduceOp op);

// The same for any number of arrays, in order and in one pass, into any number of targets. 16- and 8-bit floats stay in
// float32 from the first source to the last and are rounded once.
//
// The direct algorithms use this. With every rank's vector at hand (in shared memory, or collected), the owner of a
// piece reduces them in rank order, reads each byte once, and writes the result into every copy.
absl::StatusOr<ReduceManyFunction> ReduceManyFor(DType dtype, ReduceOp op);

// The same for sums whose sources are scaled as they are read, with the bits of Scale in kernels/cpu/cast.h.
// INVALID_ARGUMENT for integers and bool.
absl::StatusOr<ScaledSumFunction> ScaledSumFor(DType dtype);

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_REDUCE_H_
