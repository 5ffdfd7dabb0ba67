#include "kernels/cpu/scale.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"

namespace lockstep {
namespace kernels {

absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor) {
  const ScaleFunction scale = IsValid(dtype) ? ActiveTable().scale[static_cast<int>(dtype)] : nullptr;
  if (scale == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot scale ", Name(dtype), " by a factor: only floats and complex numbers can be"));
  }
  scale(target, source, count, factor);
  return absl::OkStatus();
}

absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor) {
  if (!IsValid(dtype) || !IsInteger(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot divide ", Name(dtype), " toward zero: it is no integer"));
  }
  if (divisor <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot divide ", Name(dtype), " by ", divisor, ": the divisor must be positive"));
  }
  ActiveTable().divide[static_cast<int>(dtype)](data, count, divisor);
  return absl::OkStatus();
}

}  // namespace kernels
}  // namespace lockstep
