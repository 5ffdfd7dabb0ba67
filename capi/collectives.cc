#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/collectives.h"
#include "comm/communicator.h"

namespace {

using lockstep::CollectiveRequest;
using lockstep::Communicator;
using lockstep::Rank;
using lockstep::ReduceOp;
using lockstep::TensorView;
using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::ToTensorView;

// What every collective call does around its own arguments: `build` makes the request.
template <typename Build>
lockstep_error* Call(lockstep_communicator* handle, const lockstep_collective_options* options,
                     lockstep_work** out_work, Build&& build) {
  return Guard([&]() -> absl::Status {
    if (handle == nullptr) return NullArgument("communicator");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(handle->fork_generation, "communicator"));
    lockstep_collective_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_collective_options", &given));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckStream(given.stream));
    if (given.timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
    Communicator* const communicator = handle->world->communicator();
    LOCKSTEP_ASSIGN_OR_RETURN(CollectiveRequest request, build(*communicator));
    request.timeout = std::chrono::milliseconds(given.timeout_ms);
    request.factor = given.factor;
    if (given.algorithm != nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(request.algorithm, lockstep::ParseAlgorithm(given.algorithm));
    }
    if (out_work == nullptr) return communicator->Run(request);
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, communicator->Start(request));
    *out_work = new lockstep_work{lockstep::ForkGeneration(), std::move(work)};
    return absl::OkStatus();
  });
}

}  // namespace

void lockstep_collective_options_init(lockstep_collective_options* options) {
  if (options == nullptr) return;
  *options = lockstep_collective_options{};
  options->struct_size = sizeof(*options);
}

lockstep_error* lockstep_work_wait(lockstep_work* work, int64_t timeout_ms) {
  return Guard([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(work->fork_generation, "work handle"));
    if (timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
    return work->work.Wait(lockstep::Deadline::AfterMs(timeout_ms));
  });
}

int32_t lockstep_work_done(const lockstep_work* work) { return work == nullptr || work->work.done() ? 1 : 0; }

void lockstep_work_destroy(lockstep_work* work) { lockstep::capi::Destroy(work); }

lockstep_error* lockstep_all_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                    const lockstep_tensor* output, lockstep_reduce_op op,
                                    const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator&) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceOp reduce_op, lockstep::capi::ToReduceOp(op));
    return lockstep::AllReduceRequest(in, out, reduce_op);
  });
}

lockstep_error* lockstep_broadcast(lockstep_communicator* communicator, const lockstep_tensor* tensor, int32_t root,
                                   const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView view, ToTensorView(tensor, "tensor"));
    return lockstep::BroadcastRequest(ranks, view, Rank(root));
  });
}

lockstep_error* lockstep_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                const lockstep_tensor* output, lockstep_reduce_op op, int32_t root,
                                const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    TensorView out;
    if (ranks.rank() == Rank(root)) {
      LOCKSTEP_ASSIGN_OR_RETURN(out, ToTensorView(output, "output"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceOp reduce_op, lockstep::capi::ToReduceOp(op));
    return lockstep::ReduceRequest(ranks, in, out, reduce_op, Rank(root));
  });
}

lockstep_error* lockstep_all_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                    const lockstep_tensor* output, const lockstep_collective_options* options,
                                    lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    return lockstep::AllGatherRequest(ranks, in, out);
  });
}

lockstep_error* lockstep_reduce_scatter(lockstep_communicator* communicator, const lockstep_tensor* input,
                                        const lockstep_tensor* output, lockstep_reduce_op op,
                                        const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceOp reduce_op, lockstep::capi::ToReduceOp(op));
    return lockstep::ReduceScatterRequest(ranks, in, out, reduce_op);
  });
}

lockstep_error* lockstep_barrier(lockstep_communicator* communicator, const lockstep_collective_options* options,
                                 lockstep_work** out_work) {
  return Call(communicator, options, out_work,
              [](const Communicator&) -> absl::StatusOr<CollectiveRequest> { return lockstep::BarrierRequest(); });
}
