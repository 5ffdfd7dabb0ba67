#include "kernels/cpu/cast.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"

namespace lockstep::kernels {

absl::Status CheckCast(DType to, DType from, double factor) {
  if (!IsValid(to) || !IsValid(from) || (to != from && !(IsFloat(to) && IsFloat(from)))) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot convert ", Name(from), " to ", Name(to), ": only floats are converted to each other"));
  }
  if (factor != 1.0 && !IsFloat(from) && !IsComplex(from)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot scale ", Name(from), " by ", factor, " while copying it"));
  }
  return absl::OkStatus();
}

absl::Status CastScaled(DType to, void* target, DType from, const void* source, size_t count, double factor) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCast(to, from, factor));
  if (count == 0) return absl::OkStatus();  // the pointers may be null
  if (to == from && factor == 1.0) {
    if (target != source) std::memcpy(target, source, count * SizeOf(to));
    return absl::OkStatus();
  }
  ActiveTable().cast[static_cast<int>(to)][static_cast<int>(from)](target, source, count, factor);
  return absl::OkStatus();
}

absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor) {
  const ScaleFunction scale =
      IsValid(dtype) ? ActiveTable().cast[static_cast<int>(dtype)][static_cast<int>(dtype)] : nullptr;
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

}  // namespace lockstep::kernels
