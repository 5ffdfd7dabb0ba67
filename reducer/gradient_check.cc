#include "reducer/gradient_check.h"

#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/devices.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "reducer/pipeline/bucket.h"

namespace lockstep {

GradientCheck::GradientCheck(absl::Span<const Parameter> parameters)
    : parameters_(parameters), like_(parameters.size()), like_in_bucket_(parameters.size()) {
  // Any address will do: only the geometry is looked at.
  void* const stand_in = reinterpret_cast<void*>(uintptr_t{1} << 20);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (parameter.ignored) continue;
    like_[i] =
        TensorView::Create(stand_in, parameter.dtype, parameter.shape, parameter.strides, parameter.device).value();
    like_in_bucket_[i] = DenseView(parameter, stand_in);
  }
}

absl::Status GradientCheck::Index(size_t index, bool sparse, absl::string_view call) const {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": parameter ", index, " is out of range: there are ", parameters_.size()));
  }
  const Parameter& parameter = parameters_[index];
  if (!parameter.ignored && parameter.sparse == sparse) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(call, ": ", Describe(index, parameter),
                                                 parameter.ignored ? " is ignored, as its table says"
                                                 : sparse          ? " is not sparse, as its table says"
                                                          : " is sparse, as its table says: its gradient is rows"));
}

bool GradientCheck::LayoutFits(size_t index, const TensorView& gradient, const void* view) const {
  const bool in_bucket = view != nullptr && gradient.data() == view;
  return SameLayout(gradient, in_bucket ? like_in_bucket_[index] : like_[index]);
}

absl::Status GradientCheck::Gradient(size_t index, const TensorView& gradient, const void* view) const {
  LOCKSTEP_RETURN_IF_ERROR(Index(index, /*sparse=*/false, "mark_ready"));
  const Parameter& parameter = parameters_[index];
  if (gradient.dtype() == parameter.dtype && gradient.device() == parameter.device &&
      LayoutFits(index, gradient, view)) {
    return Place(index, gradient, view, "gradient");
  }
  return absl::InvalidArgumentError(absl::StrCat("mark_ready: the gradient ", gradient.ToString(), " does not match ",
                                                 Describe(index, parameter), ": ", like_[index].ToString()));
}

absl::Status GradientCheck::Target(size_t index, const TensorView& target, const void* view) const {
  const Parameter& parameter = parameters_[index];
  const bool dtype_fits = IsComplex(parameter.dtype) ? target.dtype() == parameter.dtype : IsFloat(target.dtype());
  if (dtype_fits && target.device() == parameter.device && LayoutFits(index, target, view)) {
    return Place(index, target, view, "target");
  }
  return absl::InvalidArgumentError(absl::StrCat("mark_ready: the target ", target.ToString(), " does not fit ",
                                                 Describe(index, parameter), ": ", like_[index].ToString()));
}

absl::Status GradientCheck::Place(size_t index, const TensorView& tensor, const void* view,
                                  absl::string_view what) const {
  if (pointers_) {
    LOCKSTEP_RETURN_IF_ERROR(
        Annotate(CheckPointer(tensor.data(), tensor.device()),
                 absl::StrCat("mark_ready: the ", what, " of ", Describe(index, parameters_[index]))));
  }
  if (memory_ == nullptr || tensor.elements() == 0 || !memory_->Holds(tensor.data())) return absl::OkStatus();
  if (tensor.data() == view && tensor.dtype() == parameters_[index].dtype) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("mark_ready: ", Describe(index, parameters_[index]),
                                                    " lies where its bucket view was before plan ", *plan_version_,
                                                    ": ask for its view again"));
}

absl::Status GradientCheck::Sparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values) const {
  LOCKSTEP_RETURN_IF_ERROR(Index(index, /*sparse=*/true, "mark_ready_sparse"));
  const Parameter& parameter = parameters_[index];
  std::vector<int64_t> shape = parameter.shape;
  shape[0] = static_cast<int64_t>(rows.size());
  if (values.dtype() != parameter.dtype || values.device() != parameter.device || !values.contiguous() ||
      values.shape() != absl::MakeConstSpan(shape)) {
    return absl::InvalidArgumentError(absl::StrCat("mark_ready_sparse: the values ", values.ToString(), " of ",
                                                   rows.size(), " rows do not match ", Describe(index, parameter)));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= 0 && rows[i] < parameter.shape[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat("mark_ready_sparse: rows[", i, "] is ", rows[i], ", which ",
                                                   Describe(index, parameter), " has not"));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
