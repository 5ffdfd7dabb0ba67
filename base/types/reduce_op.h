// How elements of several ranks become one. The numbers are part of the wire format and of the C ABI: append, never
// reorder.

#ifndef BASE_TYPES_REDUCE_OP_H_
#define BASE_TYPES_REDUCE_OP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/types/dtype.h"

namespace lockstep {

enum class ReduceOp : uint8_t {
  kSum = 0,  // bool: logical or
  kAvg = 1,  // floats and complex: each rank's input times 1/n, then the sum; integers: the sum, divided toward zero
  kPremulSum = 2,  // each rank's input times a factor of its own, then the sum; floats and complex only
  kProd = 3,       // bool: logical and
  kMin = 4,        // IEEE 754-2019 minimum: NaN propagates, -0 < +0; bool: and; not for complex
  kMax = 5,        // likewise maximum; bool: or
  kAnd = 6,        // bitwise and, or, xor: integers and bool
  kOr = 7,
  kXor = 8,
};

inline constexpr int kReduceOpCount = 9;
inline constexpr ReduceOp kAllReduceOps[kReduceOpCount] = {ReduceOp::kSum,  ReduceOp::kAvg, ReduceOp::kPremulSum,
                                                           ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
                                                           ReduceOp::kAnd,  ReduceOp::kOr,  ReduceOp::kXor};

bool IsValid(ReduceOp op);
std::string Name(ReduceOp op);  // "sum", "avg", "premul_sum", ...
absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name);

// Whether the pair has a meaning (no min of complex, no and of floats, no avg of bool, ...).
bool IsDefined(DType dtype, ReduceOp op);

// INVALID_ARGUMENT naming both when the pair has none.
absl::Status CheckDefined(DType dtype, ReduceOp op);

}  // namespace lockstep

#endif  // BASE_TYPES_REDUCE_OP_H_
