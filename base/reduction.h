// A reduction as data: what a transport needs to know to fold arriving bytes into memory without knowing arithmetic.

#ifndef BASE_REDUCTION_H_
#define BASE_REDUCTION_H_

#include <cstddef>

#include "base/dtype.h"
#include "base/reduce_op.h"

namespace lockstep {

// target[i] = left[i] op right[i] for `count` elements. `target` may equal either operand exactly, and overlaps them in
// no other way. Pointers need no alignment beyond a byte. Pure arithmetic: no allocation, no lock.
using CombineFunction = void (*)(void* target, const void* left, const void* right, size_t count);

struct Reduction {
  DType dtype = DType::kF32;
  ReduceOp op =
      ReduceOp::kSum;  // kSum, kProd, kMin, kMax, kAnd, kOr or kXor: avg and premul-sum are a sum and a scaling
  CombineFunction combine = nullptr;
};

}  // namespace lockstep

#endif  // BASE_REDUCTION_H_
