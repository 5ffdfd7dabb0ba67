#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "reducer/buffers/buffers.h"

using lockstep::TensorView;
using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::OrNone;

struct lockstep_buffer_set {
  uint64_t fork_generation = lockstep::ForkGeneration();
  std::shared_ptr<lockstep::Communicator> communicator;  // outlives the set
  std::unique_ptr<lockstep::BufferSet> set;
};

lockstep_error* lockstep_buffer_set_create(lockstep_communicator* communicator, const lockstep_tensor* tensors,
                                           size_t tensor_count, lockstep_buffer_set** out_set) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_set == nullptr) return NullArgument("out_set");
    const auto views = lockstep::capi::ToTensorViews(tensors, tensor_count, "tensors");
    auto handle = std::make_unique<lockstep_buffer_set>();
    handle->communicator = communicator->Share();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->set,
                              lockstep::BufferSet::Create(communicator->get(), views.status(), OrNone(views)));
    *out_set = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_buffer_set_destroy(lockstep_buffer_set* set) { lockstep::capi::Destroy(set); }

lockstep_error* lockstep_buffer_set_broadcast(lockstep_buffer_set* set, const lockstep_tensor* tensors,
                                              size_t tensor_count, const lockstep_buffer_set_options* options,
                                              lockstep_fresh_buffers** out_fresh) {
  return Guard([&]() -> absl::Status {
    if (set == nullptr) return NullArgument("set");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(set->fork_generation, "buffer set"));
    lockstep_buffer_set_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_buffer_set_options", &given));
    if (given.timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
    const lockstep::Rank root(given.root);
    const std::chrono::milliseconds timeout(given.timeout_ms);
    const auto views = lockstep::capi::ToTensorViews(tensors, tensor_count, "tensors");
    const absl::Span<const TensorView> tensors_now = OrNone(views);
    if (out_fresh == nullptr) return set->set->BroadcastInPlace(views.status(), tensors_now, root, timeout);
    auto handle = std::make_unique<lockstep_fresh_buffers>();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->buffers, set->set->Broadcast(views.status(), tensors_now, root, timeout));
    *out_fresh = handle.release();
    return absl::OkStatus();
  });
}

void* lockstep_fresh_buffers_data(const lockstep_fresh_buffers* fresh, size_t index) {
  if (fresh == nullptr || index >= fresh->buffers.views().size()) return nullptr;
  return fresh->buffers.views()[index].data();
}

void lockstep_fresh_buffers_destroy(lockstep_fresh_buffers* fresh) { delete fresh; }
