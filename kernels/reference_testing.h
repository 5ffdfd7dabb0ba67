// What every kernel, on every processor and device, is compared with: one element at a time, in arithmetic wide enough
// to be exact or to round once, by the rules written out. Slow, shared by nothing that it judges.
//
// The meaning of each operation is that of kernels/cpu/reduce.h and cast.h. REQUIRES that the combination has one.

#ifndef KERNELS_REFERENCE_TESTING_H_
#define KERNELS_REFERENCE_TESTING_H_

#include <cstddef>
#include <cstdint>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"

namespace lockstep::kernels {

// The value of one code of a float dtype. Exact.
double ReferenceDecode(DType dtype, uint64_t code);

// The code nearest to `value`, ties to the even one. NaN gives the canonical NaN.
uint64_t ReferenceEncode(DType dtype, double value);

void ReferenceCombine(DType dtype, ReduceOp op, void* target, const void* left, const void* right, size_t count);
// One target: others get the same.
void ReferenceReduceMany(DType dtype, ReduceOp op, void* target, const void* const* sources, size_t source_count,
                         size_t count);
void ReferenceScale(DType dtype, void* target, const void* source, size_t count, double factor);
void ReferenceDivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor);
void ReferenceCast(DType to, void* target, DType from, const void* source, size_t count, double factor);

}  // namespace lockstep::kernels

#endif  // KERNELS_REFERENCE_TESTING_H_
