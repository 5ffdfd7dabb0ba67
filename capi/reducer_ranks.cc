#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "reducer/reducer.h"

using lockstep::TensorView;
using lockstep::capi::CheckUsable;
using lockstep::capi::Guard;
using lockstep::capi::ToTensorViews;

lockstep_error* lockstep_reducer_join(lockstep_reducer* reducer, const lockstep_tensor* model, size_t model_count,
                                      const lockstep_tensor* buffers, size_t buffer_count) {
  return Guard(reducer, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> model_views, ToTensorViews(model, model_count, "model"));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> buffer_views,
                              ToTensorViews(buffers, buffer_count, "buffers"));
    return reducer->reducer->Join(model_views, buffer_views);
  });
}

lockstep_error* lockstep_reducer_change_communicator(lockstep_reducer* reducer, lockstep_communicator* communicator) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckHandle(reducer, "reducer", "reducer"));
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(communicator));
    const absl::Status changed = reducer->reducer->ChangeCommunicator(communicator->get());
    // Unless that failed before it began.
    if (reducer->reducer->communicator() == communicator->get()) {
      reducer->world = communicator->world;
      reducer->communicator = communicator->Share();
    }
    return changed;
  });
}
