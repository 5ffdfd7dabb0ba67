#include "kernels/cpu/cast.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/variant.h"

namespace lockstep {
namespace kernels {

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

}  // namespace kernels
}  // namespace lockstep
