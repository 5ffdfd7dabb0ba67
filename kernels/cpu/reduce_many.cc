#include "kernels/cpu/reduce_many.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/variant.h"

namespace lockstep {
namespace kernels {

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

}  // namespace kernels
}  // namespace lockstep
