#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "reducer/buffers/buffer_sync.h"
#include "reducer/buffers/buffers.h"
#include "reducer/reducer.h"

namespace {

using lockstep::BufferHook;
using lockstep::BufferOptions;
using lockstep::TensorView;
using lockstep::capi::CheckUsable;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::OrNone;
using lockstep::capi::ReadOptions;
using lockstep::capi::TakeError;
using lockstep::capi::ToTensorViews;

// The reducer's handle outlives the reducer, and so the hook.
BufferHook ToBufferHook(lockstep_buffer_hook hook, void* context, const lockstep_reducer* reducer) {
  if (hook == nullptr) return nullptr;
  return [hook, context, reducer](lockstep::Communicator& channel, absl::Span<const TensorView> buffers) {
    lockstep_communicator communicator;
    communicator.world = reducer->world;
    communicator.borrowed = &channel;
    std::vector<lockstep_tensor> tensors;
    tensors.reserve(buffers.size());
    for (const TensorView& buffer : buffers) tensors.push_back(lockstep::capi::ToTensor(buffer));
    return TakeError(hook(context, &communicator, tensors.data(), tensors.size()));
  };
}

// What both ends of a forward do around their own call.
template <typename Body>
absl::Status WithForward(const lockstep_reducer* reducer, const lockstep_forward_options* options, Body&& body) {
  LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
  lockstep_forward_options given = {};
  LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_forward_options", &given));
  const auto views = ToTensorViews(given.buffers, given.buffer_count, "buffers");
  lockstep::ForwardOptions forward;
  forward.buffers = OrNone(views);
  const absl::Status result = body(forward);
  // It is the reason for whatever the call had to say.
  return views.ok() ? result : views.status();
}

}  // namespace

lockstep_error* lockstep_reducer_set_buffers(lockstep_reducer* reducer, const lockstep_tensor* buffers,
                                             size_t buffer_count, const lockstep_reducer_buffer_options* options) {
  return Guard(reducer, [&]() -> absl::Status {
    lockstep_reducer_buffer_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_reducer_buffer_options", &given));
    const auto views = ToTensorViews(buffers, buffer_count, "buffers");
    BufferOptions buffer_options;
    buffer_options.root = lockstep::Rank(given.root);
    buffer_options.in_place = given.in_place != 0;
    if (given.after_forward != 0) buffer_options.when = BufferOptions::When::kAfterForward;
    buffer_options.hook = ToBufferHook(given.hook, given.hook_context, reducer);
    buffer_options.local = views.status();
    LOCKSTEP_RETURN_IF_ERROR(reducer->reducer->SetBuffers(OrNone(views), std::move(buffer_options)));
    reducer->buffer_hook = lockstep::capi::Context(given.hook_context, given.hook_release);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_begin_forward(lockstep_reducer* reducer, const lockstep_forward_options* options,
                                               lockstep_fresh_buffers** out_fresh) {
  return Guard([&]() -> absl::Status {
    auto handle = std::make_unique<lockstep_fresh_buffers>();
    LOCKSTEP_RETURN_IF_ERROR(
        WithForward(reducer, options, [&](const lockstep::ForwardOptions& forward) -> absl::Status {
          LOCKSTEP_ASSIGN_OR_RETURN(handle->buffers, reducer->reducer->BeginForward(forward));
          return absl::OkStatus();
        }));
    const bool fresh = !handle->buffers.views().empty();
    if (fresh && out_fresh == nullptr) return NullArgument("out_fresh");
    if (out_fresh != nullptr) *out_fresh = fresh ? handle.release() : nullptr;
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_end_forward(lockstep_reducer* reducer, const lockstep_forward_options* options) {
  return Guard([&]() -> absl::Status {
    return WithForward(reducer, options,
                       [&](const lockstep::ForwardOptions& forward) { return reducer->reducer->EndForward(forward); });
  });
}

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
