// How the average of a bucket is computed: the factor on the way in, the op of the all-reduce, and the factor on the
// way out. Pure.

#ifndef REDUCER_PIPELINE_AVERAGE_H_
#define REDUCER_PIPELINE_AVERAGE_H_

#include "absl/status/status.h"
#include "base/types/reduce_op.h"

namespace lockstep {

// The numbers are part of the C ABI.
enum class Average : int {
  kBefore = 0,        // gradients times 1/n as they are copied in, then the sum: no overflow, as DDP does it
  kAfter = 1,         // the sum, then times 1/n as it is copied out
  kNone = 2,          // the sum
  kInCollective = 3,  // by the all-reduce, as its op: on some back ends in one pass
  kPredivide = 4,     // gradients times 1/f as they are copied in, the sum times f/n as it is copied out
};

// As the C ABI names it: "LOCKSTEP_AVERAGING_BEFORE".
const char* Name(Average average);

struct AverageFactors {
  double copy_in = 1;
  ReduceOp op = ReduceOp::kSum;
  double premultiply = 1;  // of a premul-sum
  double copy_out = 1;
  float one = 1;  // what the all-reduce turns into 1
  // The factor before the sum, of the copy or of the collective. Rows of a sparse gradient are neither copied in nor
  // all-reduced.
  double before_sum = 1;
};

// `in_place`: gradients are reduced where they are. They are not copied in, so the collective multiplies them.
AverageFactors FactorsOf(Average average, double predivide_factor, int ranks, bool in_place);

// INVALID_ARGUMENT for a predivide factor that is not between 2^-10 and 2^15: beyond, counts in 16-bit status trailers would vanish.
absl::Status CheckPredivideFactor(double factor);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_AVERAGE_H_
