#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "capi/collective_options.h"
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
using lockstep::capi::ApplyOptions;
using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::ReadCollectiveOptions;
using lockstep::capi::ToTensorView;

absl::Status CheckUsable(const lockstep_communicator* communicator) {
  if (communicator == nullptr) return NullArgument("communicator");
  return CheckNotForked(communicator->fork_generation, "communicator");
}

// What every collective call does around its own arguments: `build` makes the request.
template <typename Build>
lockstep_error* Call(lockstep_communicator* handle, const lockstep_collective_options* options,
                     lockstep_work** out_work, Build&& build) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(handle));
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep_collective_options given, ReadCollectiveOptions(options));
    Communicator* const communicator = handle->get();
    LOCKSTEP_ASSIGN_OR_RETURN(CollectiveRequest request, build(*communicator));
    LOCKSTEP_RETURN_IF_ERROR(ApplyOptions(given, &request));
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const stream,
                              handle->streams.Find(given.stream, communicator->accelerator()));
    if (stream != nullptr) {
      if (out_work != nullptr || given.prepare != 0) {
        return absl::InvalidArgumentError(
            "a collective on a stream has no work: the stream's order says when it is done");
      }
      absl::Status issued;
      LOCKSTEP_RETURN_IF_ERROR(
          communicator->Enqueue(request, stream, [&issued](const absl::Status& status) { issued = status; }));
      return issued;
    }
    if (given.prepare != 0) {
      if (out_work == nullptr) return NullArgument("out_work");
      LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<lockstep::PreparedCollective> prepared, communicator->Prepare(request));
      *out_work = new lockstep_work(std::move(prepared));
      return absl::OkStatus();
    }
    if (out_work == nullptr) return communicator->Run(request);
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, communicator->Start(request));
    *out_work = new lockstep_work(std::move(work));
    return absl::OkStatus();
  });
}

// A tensor that is looked at on the root alone.
absl::StatusOr<TensorView> OnRoot(const Communicator& communicator, int32_t root, const lockstep_tensor* tensor,
                                  const char* name) {
  if (communicator.rank() != Rank(root)) return absl::StatusOr<TensorView>(absl::in_place);
  return ToTensorView(tensor, name);
}

// One count for each rank, or none at all; the request borrows the array.
absl::Span<const int64_t> OptionalCounts(const Communicator& communicator, const int64_t* counts) {
  return absl::MakeConstSpan(counts, counts == nullptr ? 0 : communicator.size());
}

// The same where there have to be counts.
absl::StatusOr<absl::Span<const int64_t>> Counts(const Communicator& communicator, const int64_t* counts,
                                                 const char* name) {
  if (counts == nullptr) return NullArgument(name);
  return OptionalCounts(communicator, counts);
}

}  // namespace

lockstep_error* lockstep_work_start(lockstep_work* work) {
  return Guard([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(work->fork_generation, "work handle"));
    if (work->prepared != nullptr) return work->prepared->Start();
    return absl::FailedPreconditionError("the work is not a prepared collective: it is under way already");
  });
}

lockstep_error* lockstep_work_wait(lockstep_work* work, int64_t timeout_ms) {
  return Guard([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(work->fork_generation, "work handle"));
    if (timeout_ms < 0) return absl::InvalidArgumentError("timeout_ms is negative");
    const lockstep::Deadline deadline = lockstep::Deadline::AfterMs(timeout_ms);
    return work->prepared != nullptr ? work->prepared->Wait(deadline) : work->work->Wait(deadline);
  });
}

int32_t lockstep_work_done(const lockstep_work* work) {
  if (work == nullptr) return 1;
  return (work->prepared != nullptr ? work->prepared->done() : work->work->done()) ? 1 : 0;
}

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
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, OnRoot(ranks, root, output, "output"));
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

lockstep_error* lockstep_all_gather_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                      const lockstep_tensor* output, const int64_t* counts,
                                      const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto each, Counts(ranks, counts, "counts"));
    return lockstep::AllGatherRequest(ranks, in, out, each);
  });
}

lockstep_error* lockstep_reduce_scatter_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                          const lockstep_tensor* output, const int64_t* counts, lockstep_reduce_op op,
                                          const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto each, Counts(ranks, counts, "counts"));
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceOp reduce_op, lockstep::capi::ToReduceOp(op));
    return lockstep::ReduceScatterRequest(ranks, in, out, reduce_op, each);
  });
}

lockstep_error* lockstep_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, OnRoot(ranks, root, output, "output"));
    return lockstep::GatherRequest(ranks, in, out, Rank(root), OptionalCounts(ranks, counts));
  });
}

lockstep_error* lockstep_scatter(lockstep_communicator* communicator, const lockstep_tensor* input,
                                 const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                 const lockstep_collective_options* options, lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, OnRoot(ranks, root, input, "input"));
    return lockstep::ScatterRequest(ranks, in, out, Rank(root), OptionalCounts(ranks, counts));
  });
}

lockstep_error* lockstep_all_to_all(lockstep_communicator* communicator, const lockstep_tensor* input,
                                    const lockstep_tensor* output, const lockstep_collective_options* options,
                                    lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    return lockstep::AllToAllRequest(ranks, in, out);
  });
}

lockstep_error* lockstep_all_to_all_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                      const lockstep_tensor* output, const int64_t* input_counts,
                                      const int64_t* output_counts, const lockstep_collective_options* options,
                                      lockstep_work** out_work) {
  return Call(communicator, options, out_work, [&](const Communicator& ranks) -> absl::StatusOr<CollectiveRequest> {
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(input, "input"));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(output, "output"));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto to, Counts(ranks, input_counts, "input_counts"));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto from, Counts(ranks, output_counts, "output_counts"));
    return lockstep::AllToAllRequest(ranks, in, out, to, from);
  });
}

lockstep_error* lockstep_barrier(lockstep_communicator* communicator, const lockstep_collective_options* options,
                                 lockstep_work** out_work) {
  return Call(communicator, options, out_work,
              [](const Communicator&) -> absl::StatusOr<CollectiveRequest> { return lockstep::BarrierRequest(); });
}

lockstep_error* lockstep_group_start(lockstep_communicator* communicator) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(communicator));
    return communicator->get()->StartGroup();
  });
}

lockstep_error* lockstep_group_end(lockstep_communicator* communicator, lockstep_work** out_work) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(communicator));
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, communicator->get()->EndGroup());
    if (out_work != nullptr) {
      *out_work = new lockstep_work(std::move(work));
      return absl::OkStatus();
    }
    // A nested end waits for nothing; the calls' own deadlines bound the wait of the outermost.
    return work.collected() ? absl::OkStatus() : work.Wait(lockstep::Deadline::Infinite());
  });
}
