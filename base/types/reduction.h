// A reduction as data: what a transport needs to know to reduce arriving bytes into memory without knowing arithmetic.

#ifndef BASE_TYPES_REDUCTION_H_
#define BASE_TYPES_REDUCTION_H_

#include <cstddef>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"

namespace lockstep {

// target[i] = left[i] op right[i] for `count` elements. `target` may equal either operand exactly, and overlaps them in
// no other way. Pointers need no alignment beyond a byte. Pure arithmetic: no allocation, no lock.
using CombineFunction = void (*)(void* target, const void* left, const void* right, size_t count);

// targets[t][i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) op ... for `count` elements and every t, in one
// pass over the memory. Reduces in rank order and writes the result wherever it is needed. At least one target and one
// source; a single source is copied as it is. 16- and 8-bit floats are computed in float32 and rounded once, at the
// end. Two sources give the bits of CombineFunction. A target may equal a source exactly and overlaps no source in any
// other way; targets do not overlap each other. Pure arithmetic, of any alignment.
using ReduceManyFunction = void (*)(void* const* targets, size_t target_count, const void* const* sources,
                                    size_t source_count, size_t count);

// targets[t][i] = ((sources[0][i] * factor) + (sources[1][i] * factor)) + ..., otherwise like a ReduceManyFunction.
// Gives the bits of scaling every source first: each product is rounded to the dtype, even if there is one source.
using ScaledSumFunction = void (*)(void* const* targets, size_t target_count, const void* const* sources,
                                   size_t source_count, size_t count, double factor);

struct Reduction {
  DType dtype = DType::kF32;
  ReduceOp op =
      ReduceOp::kSum;  // kSum, kProd, kMin, kMax, kAnd, kOr or kXor: avg and premul-sum are a sum and a scaling
  CombineFunction combine = nullptr;
};

}  // namespace lockstep

#endif  // BASE_TYPES_REDUCTION_H_
