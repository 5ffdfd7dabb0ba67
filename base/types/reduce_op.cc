#include "base/types/reduce_op.h"

#include "absl/strings/str_cat.h"
#include "base/clipped.h"

namespace lockstep {
namespace {

// Indexed by the operation's number.
constexpr const char* kNames[kReduceOpCount] = {"sum", "avg", "premul_sum", "prod", "min", "max", "and", "or", "xor"};

}  // namespace

bool IsValid(ReduceOp op) { return static_cast<int>(op) < kReduceOpCount; }

std::string Name(ReduceOp op) {
  return IsValid(op) ? kNames[static_cast<int>(op)] : absl::StrCat("reduce_op(", static_cast<int>(op), ")");
}

absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name) {
  std::string names;
  for (ReduceOp op : kAllReduceOps) {
    if (name == kNames[static_cast<int>(op)]) return op;
    absl::StrAppend(&names, names.empty() ? "" : ", ", kNames[static_cast<int>(op)]);
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", Clipped(name), "\" is no reduction; there are ", names));
}

bool IsDefined(DType dtype, ReduceOp op) {
  if (!IsValid(dtype)) return false;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProd:
      return true;
    case ReduceOp::kAvg:
      return dtype != DType::kBool;
    case ReduceOp::kPremulSum:
      return IsFloat(dtype) || IsComplex(dtype);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !IsComplex(dtype);
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor:
      return IsInteger(dtype) || dtype == DType::kBool;
  }
  return false;  // a number that came from outside and is no operation
}

absl::Status CheckDefined(DType dtype, ReduceOp op) {
  if (IsDefined(dtype, op)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the operation ", Name(op), " is not defined for ", Name(dtype)));
}

}  // namespace lockstep
