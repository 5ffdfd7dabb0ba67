#include "kernels/cpu/reduce.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"

namespace lockstep::kernels {

absl::StatusOr<CombineFunction> CombineFor(DType dtype, ReduceOp op) {
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(dtype, op));
  if (op == ReduceOp::kAvg || op == ReduceOp::kPremulSum) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(op), " does not combine two elements of ", Name(dtype), ": it is a sum and a scaling"));
  }
  const CombineFunction combine = ActiveTable().combine[static_cast<int>(dtype)][static_cast<int>(op)];
  LOCKSTEP_CHECK(combine != nullptr) << Name(op) << " of " << Name(dtype) << " is defined but has no kernel";
  return combine;
}

absl::StatusOr<ReduceManyFunction> ReduceManyFor(DType dtype, ReduceOp op) {
  LOCKSTEP_RETURN_IF_ERROR(CombineFor(dtype, op).status());
  return ActiveTable().reduce_many[static_cast<int>(dtype)][static_cast<int>(op)];
}

absl::StatusOr<ScaledSumFunction> ScaledSumFor(DType dtype) {
  const ScaledSumFunction sum = IsValid(dtype) ? ActiveTable().scaled_sum[static_cast<int>(dtype)] : nullptr;
  if (sum != nullptr) return sum;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot scale ", Name(dtype), " by a factor: only floats and complex numbers can be"));
}

}  // namespace lockstep::kernels
