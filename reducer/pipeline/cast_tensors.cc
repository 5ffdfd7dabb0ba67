#include "reducer/pipeline/cast_tensors.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"

namespace lockstep {
namespace {

// The kernels take one side as flat memory: a view of the same elements in the order in which they walk the other,
// which is that of memory for a dense one and row-major for one with gaps.
bool FlatFor(const TensorView& flat, const TensorView& walked) {
  return walked.dense() ? flat.dense() && SameLayout(flat, walked) : flat.contiguous();
}

absl::Status CheckPair(const TensorView& source, const TensorView& target) {
  LOCKSTEP_RETURN_IF_ERROR(kernels::CheckCast(target.dtype(), source.dtype(), 1));
  if (source.device().kind != DeviceKind::kHost || target.device().kind != DeviceKind::kHost) {
    return absl::InvalidArgumentError("not both on the host");
  }
  if (source.shape() != target.shape()) return absl::InvalidArgumentError("of different shapes");
  if (!FlatFor(target, source) && !FlatFor(source, target)) return absl::InvalidArgumentError("of different layouts");
  if (Overlap(source, target)) return absl::InvalidArgumentError("they share memory");
  return absl::OkStatus();
}

absl::Status CastPair(const TensorView& source, const TensorView& target) {
  if (FlatFor(target, source)) return kernels::FlattenViews({{&source, 0}}, target.data(), target.dtype(), 1);
  return kernels::UnflattenViews({{&target, 0}}, source.data(), source.dtype(), 1);
}

}  // namespace

absl::Status CastTensors(absl::Span<const TensorView> sources, absl::Span<const TensorView> targets) {
  if (sources.size() != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cast: ", sources.size(), " sources and ", targets.size(), " targets"));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    LOCKSTEP_RETURN_IF_ERROR(
        Annotate(CheckPair(sources[i], targets[i]),
                 absl::StrCat("cast: tensor ", i, " from ", sources[i].ToString(), " to ", targets[i].ToString())));
  }
  for (size_t i = 0; i < sources.size(); ++i) LOCKSTEP_RETURN_IF_ERROR(CastPair(sources[i], targets[i]));
  return absl::OkStatus();
}

}  // namespace lockstep
