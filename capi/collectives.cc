#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/error_info.h"
#include "base/rank.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/hook.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "comm/plan/collectives.h"
#include "comm/schedule/schedule.h"

namespace {

using lockstep::CollectiveRequest;
using lockstep::Communicator;
using lockstep::Rank;
using lockstep::TensorView;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::ReadTimeout;
using lockstep::capi::ToReduceOp;
using lockstep::capi::ToTensorView;

// One count for each rank, or none at all; the request borrows the array.
absl::Span<const int64_t> Counts(const Communicator& communicator, const int64_t* counts) {
  return absl::MakeConstSpan(counts, counts == nullptr ? 0 : communicator.size());
}

// A tensor that is looked at on the root alone.
absl::StatusOr<TensorView> OnRoot(const Communicator& communicator, const lockstep_collective& given,
                                  const lockstep_tensor* tensor, const char* name) {
  if (communicator.rank() != Rank(given.root)) return absl::StatusOr<TensorView>(absl::in_place);
  return ToTensorView(tensor, name);
}

absl::StatusOr<CollectiveRequest> ToRequest(const Communicator& ranks, const lockstep_collective& given) {
  const absl::Span<const int64_t> counts = Counts(ranks, given.counts);
  const Rank root(given.root);
  switch (given.kind) {
    case LOCKSTEP_COLLECTIVE_ALL_REDUCE: {
      LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::ReduceOp op, ToReduceOp(given.op));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(given.input, "input"));
      // One struct for both is common, and what it takes to read it is a good part of a short call.
      if (given.output == given.input) return lockstep::AllReduceRequest(in, in, op);
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(given.output, "output"));
      return lockstep::AllReduceRequest(in, out, op);
    }
    case LOCKSTEP_COLLECTIVE_BROADCAST: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView tensor, ToTensorView(given.input, "tensor"));
      return lockstep::BroadcastRequest(ranks, tensor, root);
    }
    case LOCKSTEP_COLLECTIVE_ALL_GATHER: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(given.input, "input"));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(given.output, "output"));
      return lockstep::AllGatherRequest(ranks, in, out, counts);
    }
    case LOCKSTEP_COLLECTIVE_REDUCE_SCATTER: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(given.input, "input"));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(given.output, "output"));
      LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::ReduceOp op, ToReduceOp(given.op));
      return lockstep::ReduceScatterRequest(ranks, in, out, op, counts);
    }
    case LOCKSTEP_COLLECTIVE_ALL_TO_ALL: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(given.input, "input"));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(given.output, "output"));
      if ((given.counts == nullptr) != (given.output_counts == nullptr)) {
        return absl::InvalidArgumentError("an all-to-all takes counts of both its input and its output, or none");
      }
      return lockstep::AllToAllRequest(ranks, in, out, counts, Counts(ranks, given.output_counts));
    }
    case LOCKSTEP_COLLECTIVE_REDUCE: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(given.input, "input"));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, OnRoot(ranks, given, given.output, "output"));
      LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::ReduceOp op, ToReduceOp(given.op));
      return lockstep::ReduceRequest(ranks, in, out, op, root);
    }
    case LOCKSTEP_COLLECTIVE_BARRIER:
      return lockstep::BarrierRequest();
    case LOCKSTEP_COLLECTIVE_GATHER: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, ToTensorView(given.input, "input"));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, OnRoot(ranks, given, given.output, "output"));
      return lockstep::GatherRequest(ranks, in, out, root, counts);
    }
    case LOCKSTEP_COLLECTIVE_SCATTER: {
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView out, ToTensorView(given.output, "output"));
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView in, OnRoot(ranks, given, given.input, "input"));
      return lockstep::ScatterRequest(ranks, in, out, root, counts);
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat(given.kind, " is no lockstep_collective_kind"));
  }
}

// Of more, bytes could be more than a size_t counts.
constexpr int64_t kPlainElementsMax = int64_t{1} << 40;

// Of an element; all sizes divide it.
constexpr uintptr_t kSizeMax = 16;

// A short call's way: a sum in place of one dense vector of the host takes no view to read it, which is a good part of what the call costs.
// Anything else, and whatever is wrong with it, is for ToRequest.
bool ReadPlain(const lockstep_collective& given, CollectiveRequest* request) {
  const lockstep_tensor* const tensor = given.input;
  if (given.kind != LOCKSTEP_COLLECTIVE_ALL_REDUCE || tensor == nullptr || given.output != tensor) return false;
  if (tensor->data == nullptr || tensor->strides != nullptr || tensor->shape == nullptr) return false;
  if (tensor->dimensions != 1 || tensor->shape[0] <= 0 || tensor->shape[0] > kPlainElementsMax) return false;
  if (tensor->dtype <= 0 || tensor->dtype > lockstep::kDTypeCount) return false;
  if (tensor->device_kind != LOCKSTEP_HOST || tensor->device_index != 0) return false;
  if (given.op != LOCKSTEP_SUM) return false;
  request->dtype = static_cast<lockstep::DType>(tensor->dtype - 1);
  // In the lower half of the address space, so that the end is no smaller than the beginning.
  const auto begin = reinterpret_cast<uintptr_t>(tensor->data);
  if (begin > UINTPTR_MAX / 2) return false;
  if (begin % kSizeMax != 0 && begin % SizeOf(request->dtype) != 0) return false;
  request->collective = lockstep::Collective::kAllReduce;
  request->count = static_cast<size_t>(tensor->shape[0]);
  request->input = request->output = tensor->data;
  return true;
}

// Sets the options of requests with this op.
absl::Status SetOptions(const lockstep_collective_options* options, lockstep_reduce_op op,
                        absl::Span<CollectiveRequest> requests) {
  lockstep_collective_options given = {};
  LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(options, "lockstep_collective_options", &given));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, ReadTimeout(given.timeout_ms));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto wait, ReadTimeout(given.wait_ms, "wait_ms"));
  if ((given.factor != nullptr) != (op == LOCKSTEP_PREMUL_SUM)) {
    return absl::InvalidArgumentError(given.factor == nullptr ? "LOCKSTEP_PREMUL_SUM without a factor in the options"
                                                              : "a factor in the options, but not LOCKSTEP_PREMUL_SUM");
  }
  lockstep::Algorithm algorithm = lockstep::Algorithm::kAuto;
  if (given.algorithm != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(algorithm, lockstep::ParseAlgorithm(given.algorithm));
  }
  for (CollectiveRequest& request : requests) {
    request.timeout = timeout;
    request.wait = wait;
    if (given.factor != nullptr) request.factor = *given.factor;
    request.algorithm = algorithm;
  }
  return absl::OkStatus();
}

// The whole request: the collective with its options.
absl::StatusOr<CollectiveRequest> ToRequest(const Communicator& ranks, const lockstep_collective& collective,
                                            const lockstep_collective_options* options) {
  LOCKSTEP_ASSIGN_OR_RETURN(CollectiveRequest request, ToRequest(ranks, collective));
  LOCKSTEP_RETURN_IF_ERROR(SetOptions(options, collective.op, absl::MakeSpan(&request, 1)));
  return request;
}

absl::StatusOr<lockstep::Work> StartTogether(Communicator* communicator, absl::Span<const CollectiveRequest> requests) {
  if (requests.size() == 1) return communicator->Start(requests[0]);
  LOCKSTEP_RETURN_IF_ERROR(communicator->StartGroup());
  absl::Status started;
  for (const CollectiveRequest& request : requests) {
    if (started.ok()) started = communicator->Start(request).status();
  }
  absl::StatusOr<lockstep::Work> work = communicator->EndGroup();
  LOCKSTEP_RETURN_IF_ERROR(started);
  return work;
}

absl::Status EnqueueOn(lockstep_communicator* handle, const lockstep_stream* stream, const CollectiveRequest& request) {
  if (handle->hook_bucket != nullptr) return lockstep::capi::EnqueueForHook(handle->hook_bucket, stream, request);
  Communicator* const communicator = handle->get();
  LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const on, handle->streams.Find(stream, communicator->accelerator()));
  absl::Status issued;
  LOCKSTEP_RETURN_IF_ERROR(
      communicator->Enqueue(request, on, [&issued](const absl::Status& status) { issued = status; }));
  return issued;
}

// Executes the requests of one call.
absl::Status Issue(lockstep_communicator* handle, absl::Span<const CollectiveRequest> requests,
                   const lockstep_stream* stream, lockstep_work** out_work) {
  if (stream != nullptr && out_work != nullptr) {
    return absl::InvalidArgumentError("a collective on a stream has no work: the stream's order says when it is done");
  }
  if (handle->hook_bucket != nullptr || stream != nullptr) {
    for (const CollectiveRequest& request : requests) {
      LOCKSTEP_RETURN_IF_ERROR(EnqueueOn(handle, stream, request));
    }
    return absl::OkStatus();
  }
  if (out_work == nullptr && requests.size() == 1) return handle->get()->Run(requests[0]);
  LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, StartTogether(handle->get(), requests));
  if (out_work == nullptr) return work.collected() ? absl::OkStatus() : work.Wait(lockstep::Deadline::Infinite());
  *out_work = new lockstep_work(handle->Share(), std::move(work));
  return absl::OkStatus();
}

lockstep_error* Call(lockstep_communicator* handle, const lockstep_collective& collective,
                     const lockstep_collective_options* options, const lockstep_stream* stream,
                     lockstep_work** out_work) {
  return Guard(handle, [&]() -> absl::Status {
    CollectiveRequest plain;
    if (options == nullptr && stream == nullptr && ReadPlain(collective, &plain)) {
      return Issue(handle, absl::MakeConstSpan(&plain, 1), nullptr, out_work);
    }
    const absl::StatusOr<CollectiveRequest> request = ToRequest(*handle->get(), collective, options);
    if (!request.ok()) return handle->get()->Refuse(request.status());
    return Issue(handle, absl::MakeConstSpan(&*request, 1), stream, out_work);
  });
}

// The requests of a list of tensors, without options. Input and output of the collective are arrays.
absl::StatusOr<std::vector<CollectiveRequest>> ToRequests(const Communicator& ranks, lockstep_collective collective,
                                                          size_t count) {
  std::vector<CollectiveRequest> calls;
  calls.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    if (!ReadPlain(collective, &calls.emplace_back())) {
      absl::StatusOr<CollectiveRequest> call = ToRequest(ranks, collective);
      if (!call.ok()) return lockstep::Annotate(call.status(), absl::StrCat("tensor ", i));
      calls.back() = *std::move(call);
    }
    ++collective.input;
    ++collective.output;
  }
  return lockstep::CoalescedRequests(ranks, std::move(calls));
}

// The whole request of a list that is prepared.
absl::StatusOr<CollectiveRequest> ListRequest(const Communicator& ranks, lockstep_collective collective,
                                              const lockstep_collective_options* options) {
  const bool broadcast = collective.kind == LOCKSTEP_COLLECTIVE_BROADCAST;
  if (!broadcast && collective.kind != LOCKSTEP_COLLECTIVE_ALL_REDUCE &&
      collective.kind != LOCKSTEP_COLLECTIVE_ALL_GATHER && collective.kind != LOCKSTEP_COLLECTIVE_REDUCE_SCATTER) {
    return absl::InvalidArgumentError("tensor_count: this collective is not carried out on a list of tensors");
  }
  if (collective.counts != nullptr) return absl::InvalidArgumentError("both tensor_count and counts");
  if (broadcast) collective.output = collective.input;
  if (collective.input == nullptr) return NullArgument("input");
  if (collective.output == nullptr) return NullArgument("output");
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<CollectiveRequest> requests,
                            ToRequests(ranks, collective, collective.tensor_count));
  if (requests[0].device.kind != lockstep::DeviceKind::kHost) {
    return absl::UnimplementedError("a list of tensors on a device cannot be prepared");
  }
  LOCKSTEP_RETURN_IF_ERROR(SetOptions(options, collective.op, absl::MakeSpan(requests)));
  return std::move(requests[0]);
}

// Of each tensor, or pair of them, what `collective` is of its input and output.
lockstep_error* CallCoalesced(lockstep_communicator* handle, lockstep_collective collective, size_t count,
                              const lockstep_collective_options* options, const lockstep_stream* stream,
                              lockstep_work** out_work) {
  return Guard(handle, [&]() -> absl::Status {
    const bool broadcast = collective.kind == LOCKSTEP_COLLECTIVE_BROADCAST;
    const lockstep_reduce_op op = collective.op;
    const int64_t none = 0;
    lockstep_tensor nothing = {nullptr, &none, nullptr, 1, LOCKSTEP_U8, LOCKSTEP_HOST, 0};
    if (count == 0) {
      // A list of no tensors takes part like any other: ranks whose lists are not empty get an error instead of waiting.
      if (stream != nullptr) {
        nothing.device_kind = stream->device_kind;
        nothing.device_index = stream->device_index;
      }
      collective.input = collective.output = &nothing;
      collective.op = LOCKSTEP_SUM;
      count = 1;
    }
    Communicator& ranks = *handle->get();
    if (collective.input == nullptr) return ranks.Refuse(NullArgument(broadcast ? "tensors" : "inputs"));
    if (collective.output == nullptr) return ranks.Refuse(NullArgument("outputs"));
    absl::StatusOr<std::vector<CollectiveRequest>> requests = ToRequests(ranks, collective, count);
    if (!requests.ok()) return ranks.Refuse(requests.status());
    const absl::Status set = SetOptions(options, op, absl::MakeSpan(*requests));
    if (!set.ok()) return ranks.Refuse(set);
    return Issue(handle, *requests, stream, out_work);
  });
}

lockstep_collective Collective(lockstep_collective_kind kind, const lockstep_tensor* input,
                               const lockstep_tensor* output, lockstep_reduce_op op = LOCKSTEP_SUM, int32_t root = 0,
                               const int64_t* counts = nullptr, const int64_t* output_counts = nullptr) {
  return {sizeof(lockstep_collective), kind, op, root, input, output, counts, output_counts, /*tensor_count=*/0};
}

}  // namespace

lockstep_error* lockstep_all_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                    const lockstep_tensor* output, lockstep_reduce_op op,
                                    const lockstep_collective_options* options, const lockstep_stream* stream,
                                    lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_ALL_REDUCE, input, output, op), options, stream, out_work);
}

lockstep_error* lockstep_broadcast(lockstep_communicator* communicator, const lockstep_tensor* tensor, int32_t root,
                                   const lockstep_collective_options* options, const lockstep_stream* stream,
                                   lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_BROADCAST, tensor, nullptr, LOCKSTEP_SUM, root), options,
              stream, out_work);
}

lockstep_error* lockstep_all_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                    const lockstep_tensor* output, const lockstep_collective_options* options,
                                    const lockstep_stream* stream, lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_ALL_GATHER, input, output), options, stream, out_work);
}

lockstep_error* lockstep_reduce_scatter(lockstep_communicator* communicator, const lockstep_tensor* input,
                                        const lockstep_tensor* output, lockstep_reduce_op op,
                                        const lockstep_collective_options* options, const lockstep_stream* stream,
                                        lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_REDUCE_SCATTER, input, output, op), options, stream,
              out_work);
}

lockstep_error* lockstep_all_to_all(lockstep_communicator* communicator, const lockstep_tensor* input,
                                    const lockstep_tensor* output, const lockstep_collective_options* options,
                                    const lockstep_stream* stream, lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_ALL_TO_ALL, input, output), options, stream, out_work);
}

lockstep_error* lockstep_reduce(lockstep_communicator* communicator, const lockstep_tensor* input,
                                const lockstep_tensor* output, lockstep_reduce_op op, int32_t root,
                                const lockstep_collective_options* options, const lockstep_stream* stream,
                                lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_REDUCE, input, output, op, root), options, stream, out_work);
}

lockstep_error* lockstep_barrier(lockstep_communicator* communicator, const lockstep_collective_options* options,
                                 const lockstep_stream* stream, lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_BARRIER, nullptr, nullptr), options, stream, out_work);
}

lockstep_error* lockstep_all_gather_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                      const lockstep_tensor* output, const int64_t* counts,
                                      const lockstep_collective_options* options, const lockstep_stream* stream,
                                      lockstep_work** out_work) {
  if (counts == nullptr) return Guard([] { return NullArgument("counts"); });
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_ALL_GATHER, input, output, LOCKSTEP_SUM, 0, counts), options,
              stream, out_work);
}

lockstep_error* lockstep_reduce_scatter_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                          const lockstep_tensor* output, const int64_t* counts, lockstep_reduce_op op,
                                          const lockstep_collective_options* options, const lockstep_stream* stream,
                                          lockstep_work** out_work) {
  if (counts == nullptr) return Guard([] { return NullArgument("counts"); });
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_REDUCE_SCATTER, input, output, op, 0, counts), options,
              stream, out_work);
}

lockstep_error* lockstep_gather(lockstep_communicator* communicator, const lockstep_tensor* input,
                                const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                const lockstep_collective_options* options, const lockstep_stream* stream,
                                lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_GATHER, input, output, LOCKSTEP_SUM, root, counts), options,
              stream, out_work);
}

lockstep_error* lockstep_scatter(lockstep_communicator* communicator, const lockstep_tensor* input,
                                 const lockstep_tensor* output, const int64_t* counts, int32_t root,
                                 const lockstep_collective_options* options, const lockstep_stream* stream,
                                 lockstep_work** out_work) {
  return Call(communicator, Collective(LOCKSTEP_COLLECTIVE_SCATTER, input, output, LOCKSTEP_SUM, root, counts), options,
              stream, out_work);
}

lockstep_error* lockstep_all_to_all_v(lockstep_communicator* communicator, const lockstep_tensor* input,
                                      const lockstep_tensor* output, const int64_t* input_counts,
                                      const int64_t* output_counts, const lockstep_collective_options* options,
                                      const lockstep_stream* stream, lockstep_work** out_work) {
  if (input_counts == nullptr) return Guard([] { return NullArgument("input_counts"); });
  if (output_counts == nullptr) return Guard([] { return NullArgument("output_counts"); });
  return Call(communicator,
              Collective(LOCKSTEP_COLLECTIVE_ALL_TO_ALL, input, output, LOCKSTEP_SUM, 0, input_counts, output_counts),
              options, stream, out_work);
}

lockstep_error* lockstep_all_reduce_coalesced(lockstep_communicator* communicator, const lockstep_tensor* inputs,
                                              const lockstep_tensor* outputs, size_t count, lockstep_reduce_op op,
                                              const lockstep_collective_options* options, const lockstep_stream* stream,
                                              lockstep_work** out_work) {
  return CallCoalesced(communicator, Collective(LOCKSTEP_COLLECTIVE_ALL_REDUCE, inputs, outputs, op), count, options,
                       stream, out_work);
}

lockstep_error* lockstep_broadcast_coalesced(lockstep_communicator* communicator, const lockstep_tensor* tensors,
                                             size_t count, int32_t root, const lockstep_collective_options* options,
                                             const lockstep_stream* stream, lockstep_work** out_work) {
  return CallCoalesced(communicator, Collective(LOCKSTEP_COLLECTIVE_BROADCAST, tensors, tensors, LOCKSTEP_SUM, root),
                       count, options, stream, out_work);
}

lockstep_error* lockstep_all_gather_coalesced(lockstep_communicator* communicator, const lockstep_tensor* inputs,
                                              const lockstep_tensor* outputs, size_t count,
                                              const lockstep_collective_options* options, const lockstep_stream* stream,
                                              lockstep_work** out_work) {
  return CallCoalesced(communicator, Collective(LOCKSTEP_COLLECTIVE_ALL_GATHER, inputs, outputs), count, options,
                       stream, out_work);
}

lockstep_error* lockstep_reduce_scatter_coalesced(lockstep_communicator* communicator, const lockstep_tensor* inputs,
                                                  const lockstep_tensor* outputs, size_t count, lockstep_reduce_op op,
                                                  const lockstep_collective_options* options,
                                                  const lockstep_stream* stream, lockstep_work** out_work) {
  return CallCoalesced(communicator, Collective(LOCKSTEP_COLLECTIVE_REDUCE_SCATTER, inputs, outputs, op), count,
                       options, stream, out_work);
}

lockstep_error* lockstep_work_wait(lockstep_work* work, int64_t timeout_ms) {
  return Guard(work, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, ReadTimeout(timeout_ms));
    return work->work.Wait(lockstep::Deadline::After(timeout));
  });
}

int32_t lockstep_work_done(const lockstep_work* work) { return work == nullptr || work->work.done() ? 1 : 0; }

lockstep_error* lockstep_work_on_complete(lockstep_work* work, lockstep_work_callback callback, void* context) {
  return Guard(work, [&]() -> absl::Status {
    if (callback == nullptr) return NullArgument("callback");
    if (work->work.collected())
      return absl::FailedPreconditionError("the work is of a group that is open: end it first");
    work->work.OnComplete([callback, context](const absl::Status& status) {
      lockstep_error* const error = lockstep::capi::ToError(status);
      callback(context, error);
      lockstep_error_free(error);
    });
    return absl::OkStatus();
  });
}

void lockstep_work_destroy(lockstep_work* work) { lockstep::capi::Destroy(work); }

lockstep_error* lockstep_prepared_create(lockstep_communicator* communicator, const lockstep_collective* collective,
                                         const lockstep_collective_options* options, lockstep_prepared** out_prepared) {
  return Guard(communicator, [&]() -> absl::Status {
    if (collective == nullptr) return NullArgument("collective");
    if (out_prepared == nullptr) return NullArgument("out_prepared");
    lockstep_collective given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(collective, "lockstep_collective", &given));
    Communicator* const ranks = communicator->get();
    LOCKSTEP_ASSIGN_OR_RETURN(const CollectiveRequest request, given.tensor_count == 0
                                                                   ? ToRequest(*ranks, given, options)
                                                                   : ListRequest(*ranks, given, options));
    auto handle = std::make_unique<lockstep_prepared>();
    handle->communicator = communicator->Share();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->collective, ranks->Prepare(request));
    *out_prepared = handle.release();
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_prepared_start(lockstep_prepared* prepared) {
  return Guard(prepared, [&] { return prepared->collective->Start(); });
}

lockstep_error* lockstep_prepared_run(lockstep_prepared* prepared) {
  return Guard(prepared, [&] { return prepared->collective->Run(); });
}

lockstep_error* lockstep_prepared_wait(lockstep_prepared* prepared, int64_t timeout_ms) {
  return Guard(prepared, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, ReadTimeout(timeout_ms));
    return prepared->collective->Wait(lockstep::Deadline::After(timeout));
  });
}

int32_t lockstep_prepared_done(const lockstep_prepared* prepared) {
  return prepared == nullptr || prepared->collective->done() ? 1 : 0;
}

void lockstep_prepared_destroy(lockstep_prepared* prepared) { lockstep::capi::Destroy(prepared); }

lockstep_error* lockstep_monitored_barrier(lockstep_communicator* communicator, int64_t timeout_ms) {
  return Guard(communicator, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, ReadTimeout(timeout_ms));
    std::vector<Rank> missing;
    const absl::Status come = communicator->get()->MonitoredBarrier(timeout, &missing);
    lockstep::ErrorInfo info;
    if (!missing.empty()) info.failed_rank = missing.front().value();
    return lockstep::WithErrorInfo(come, info);
  });
}

lockstep_error* lockstep_group_start(lockstep_communicator* communicator) {
  return Guard(communicator, [&] { return communicator->get()->StartGroup(); });
}

lockstep_error* lockstep_group_end(lockstep_communicator* communicator, lockstep_work** out_work) {
  return Guard(communicator, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Work work, communicator->get()->EndGroup());
    if (out_work != nullptr) {
      *out_work = new lockstep_work(communicator->Share(), std::move(work));
      return absl::OkStatus();
    }
    // A nested end waits for nothing; the calls' own deadlines bound the wait of the outermost.
    return work.collected() ? absl::OkStatus() : work.Wait(lockstep::Deadline::Infinite());
  });
}
