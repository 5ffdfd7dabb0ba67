#include <vector>

#include "absl/status/status.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "reducer/pipeline/cast_tensors.h"

lockstep_error* lockstep_cast_tensors(const lockstep_tensor* sources, const lockstep_tensor* targets,
                                      size_t tensor_count) {
  return lockstep::capi::Guard([&]() -> absl::Status {
    using lockstep::TensorView;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> from,
                              lockstep::capi::ToTensorViews(sources, tensor_count, "sources"));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> to,
                              lockstep::capi::ToTensorViews(targets, tensor_count, "targets"));
    return lockstep::CastTensors(from, to);
  });
}
