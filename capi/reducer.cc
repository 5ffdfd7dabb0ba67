#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/reducer_options.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "reducer/buffers/buffer_sync.h"
#include "reducer/buffers/buffers.h"
#include "reducer/plan/agreement.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/report/reports.h"
#include "reducer/sparse/sparse_gradient.h"

namespace {

static_assert(static_cast<int>(lockstep::GradientState::kUndefined) == LOCKSTEP_GRADIENT_UNDEFINED, "");

using lockstep::BufferHook;
using lockstep::BufferOptions;
using lockstep::TensorView;
using lockstep::capi::CheckUsable;
using lockstep::capi::Context;
using lockstep::capi::CopyString;
using lockstep::capi::FindStream;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::OrNone;
using lockstep::capi::ReadOptions;
using lockstep::capi::TakeError;
using lockstep::capi::ToParameters;
using lockstep::capi::ToReducerOptions;
using lockstep::capi::ToTensor;
using lockstep::capi::ToTensorView;
using lockstep::capi::ToTensorViews;

// The reducer's handle outlives the reducer, and so the hook.
BufferHook ToBufferHook(lockstep_buffer_hook hook, void* context, const lockstep_reducer* reducer) {
  if (hook == nullptr) return nullptr;
  return [hook, context, reducer](lockstep::Communicator& channel, absl::Span<const TensorView> buffers) {
    lockstep_communicator communicator;
    communicator.world = reducer->world;
    communicator.borrowed = std::shared_ptr<lockstep::Communicator>(reducer->world, &channel);
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

lockstep_error* lockstep_reducer_create(lockstep_communicator* communicator, const lockstep_parameter* parameters,
                                        size_t parameter_count, const lockstep_reducer_options* options,
                                        lockstep_reducer** out_reducer) {
  return Guard(communicator, [&]() -> absl::Status {
    if (out_reducer == nullptr) return NullArgument("out_reducer");
    lockstep_reducer_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_reducer_options", &given));
    lockstep::Communicator* const ranks = communicator->get();
    auto handle = std::make_unique<lockstep_reducer>();
    handle->world = communicator->world;
    handle->communicator = communicator->Share();
    absl::StatusOr<lockstep::ReducerOptions> reducer_options = ToReducerOptions(given, &handle->world);
    absl::StatusOr<std::vector<lockstep::Parameter>> table = ToParameters(parameters, parameter_count);
    absl::Status local = reducer_options.status();
    local.Update(table.status());
    // The other ranks are about to compare their tables with ours: they are told rather than left waiting.
    if (!local.ok()) return lockstep::AgreeOnParameters(*ranks, local, "", {});
    LOCKSTEP_ASSIGN_OR_RETURN(handle->reducer,
                              lockstep::Reducer::Create(ranks, *std::move(table), *std::move(reducer_options)));
    handle->averages.resize(parameter_count);
    handle->views.resize(parameter_count);
    handle->hook = Context(given.hook_context, given.hook_release);
    handle->optimizer = Context(given.optimizer_context, given.optimizer_release);
    handle->drift = Context(given.drift_context, given.drift_release);
    handle->replica_count = given.replica_count;
    *out_reducer = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_reducer_destroy(lockstep_reducer* reducer) {
  if (lockstep::capi::Callbacks() == 0) return lockstep::capi::Destroy(reducer);
  LOCKSTEP_LOG(kError) << "lockstep_reducer_destroy was called in a callback of a reducer, for which it would wait: it "
                          "has no effect there";
}

lockstep_error* lockstep_reducer_broadcast(lockstep_reducer* reducer, const lockstep_tensor* tensors,
                                           size_t tensor_count, int32_t root) {
  return Guard(reducer, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<TensorView> views, ToTensorViews(tensors, tensor_count, "tensors"));
    return reducer->reducer->Broadcast(views, lockstep::Rank(root));
  });
}

lockstep_error* lockstep_reducer_begin_backward(lockstep_reducer* reducer, const lockstep_backward_options* options) {
  return Guard(reducer, [&]() -> absl::Status {
    lockstep_backward_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_backward_options", &given));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckFlag(given.no_sync, "no_sync"));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckFlag(given.unused_given, "unused_given"));
    lockstep::BackwardOptions backward;
    backward.sync = given.no_sync == 0;
    if (given.unused_count > 0 && given.unused == nullptr) return NullArgument("unused");
    if (given.unused_count > 0 && given.unused_given == 0) {
      return absl::InvalidArgumentError("unused parameters without unused_given");
    }
    if (given.unused_given != 0) backward.unused = absl::MakeConstSpan(given.unused, given.unused_count);
    LOCKSTEP_ASSIGN_OR_RETURN(backward.stream, FindStream(*reducer, given.stream));
    if (given.replicas != nullptr) backward.replicas = absl::MakeConstSpan(given.replicas, reducer->replica_count);
    return reducer->reducer->BeginBackward(backward);
  });
}

lockstep_error* lockstep_reducer_mark_ready(lockstep_reducer* reducer, size_t index, const lockstep_tensor* gradient,
                                            const lockstep_stream* stream) {
  return Guard(reducer, [&]() -> absl::Status {
    const auto on = FindStream(*reducer, stream);
    const auto view = ToTensorView(gradient, "gradient");
    if (!on.ok() || !view.ok()) return reducer->reducer->RefuseMark(index, on.ok() ? view.status() : on.status());
    return reducer->reducer->MarkReady(index, *view, *on);
  });
}

lockstep_error* lockstep_reducer_mark_unused(lockstep_reducer* reducer, size_t index, const lockstep_stream* stream) {
  return Guard(reducer, [&]() -> absl::Status {
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const on, FindStream(*reducer, stream));
    return reducer->reducer->MarkUnused(index, on);
  });
}

lockstep_error* lockstep_reducer_explain_missing(lockstep_reducer* reducer, const char* reason) {
  return Guard(reducer, [&]() -> absl::Status {
    if (reason == nullptr) return NullArgument("reason");
    reducer->reducer->ExplainMissing(reason);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_mark_ready_into(lockstep_reducer* reducer, size_t index,
                                                 const lockstep_tensor* gradient, const lockstep_tensor* target,
                                                 const lockstep_stream* stream) {
  return Guard(reducer, [&]() -> absl::Status {
    const auto on = FindStream(*reducer, stream);
    const auto view = ToTensorView(gradient, "gradient");
    const auto into = ToTensorView(target, "target");
    for (const absl::Status& read : {on.status(), view.status(), into.status()}) {
      if (!read.ok()) return reducer->reducer->RefuseMark(index, read);
    }
    return reducer->reducer->MarkReady(index, *view, *into, *on);
  });
}

// Whether the end of a backward can be asked for. If the communicator was destroyed, the gradients are in use until the backward has ended.
static absl::Status CheckCanEnd(const lockstep_reducer* reducer) {
  LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckReducer(reducer));
  if (reducer->communicator->left()) reducer->reducer->EndBackward(nullptr).IgnoreError();
  return CheckUsable(reducer);
}

lockstep_error* lockstep_reducer_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckCanEnd(reducer));
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const on, FindStream(*reducer, stream));
    return reducer->reducer->EndBackward(on);
  });
}

lockstep_error* lockstep_reducer_try_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream,
                                                  int64_t timeout_ms, int32_t* out_ended) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckCanEnd(reducer));
    if (out_ended == nullptr) return NullArgument("out_ended");
    LOCKSTEP_ASSIGN_OR_RETURN(lockstep::Stream* const on, FindStream(*reducer, stream));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto timeout, lockstep::capi::ReadTimeout(timeout_ms));
    LOCKSTEP_ASSIGN_OR_RETURN(const bool ended,
                              reducer->reducer->TryEndBackward(on, lockstep::Deadline::After(timeout)));
    *out_ended = ended ? 1 : 0;
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_check_replays(lockstep_reducer* reducer) {
  return Guard(reducer, [&] { return reducer->reducer->CheckReplays(); });
}

lockstep_error* lockstep_reducer_averaged_gradient(lockstep_reducer* reducer, size_t index, lockstep_tensor* out_tensor,
                                                   int32_t* out_used) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_tensor == nullptr) return NullArgument("out_tensor");
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView average, reducer->reducer->AverageOf(index));
    // A parameter of no elements has no data either, but a shape.
    const bool used = average.data() != nullptr || !average.shape().empty();
    reducer->averages[index] = std::move(average);
    *out_tensor = used ? ToTensor(reducer->averages[index]) : lockstep_tensor{};
    if (out_used != nullptr) *out_used = used ? 1 : 0;
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_gradient_view(lockstep_reducer* reducer, size_t index, lockstep_tensor* out_tensor) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_tensor == nullptr) return NullArgument("out_tensor");
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, reducer->reducer->GradientView(index));
    reducer->views[index] = std::move(view);
    *out_tensor = ToTensor(reducer->views[index]);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_gradient_state(lockstep_reducer* reducer, size_t index,
                                                lockstep_gradient_state* out_state) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_state == nullptr) return NullArgument("out_state");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::GradientState state, reducer->reducer->StateOf(index));
    *out_state = static_cast<lockstep_gradient_state>(state);
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_request_replan(lockstep_reducer* reducer) {
  return Guard(reducer, [&] { return reducer->reducer->RequestReplan(); });
}

int64_t lockstep_reducer_plan_version(const lockstep_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->plan_version();
}

lockstep_error* lockstep_reducer_export_plan(const lockstep_reducer* reducer, char** out_text) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_text == nullptr) return NullArgument("out_text");
    *out_text = CopyString(reducer->reducer->ExportPlan());
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_parameter_uses(const lockstep_reducer* reducer, size_t index, int64_t* out_here,
                                                int64_t* out_anywhere) {
  return Guard(reducer, [&]() -> absl::Status {
    const absl::Span<const lockstep::ParameterUse> uses = reducer->reducer->parameter_use();
    if (index >= uses.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", index, " is out of range: the table has ", uses.size()));
    }
    if (out_here != nullptr) *out_here = uses[index].by_this_rank;
    if (out_anywhere != nullptr) *out_anywhere = uses[index].by_any_rank;
    return absl::OkStatus();
  });
}

size_t lockstep_reducer_bucket_count(const lockstep_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->plan().buckets.size();
}

lockstep_error* lockstep_reducer_get_statistics(const lockstep_reducer* reducer,
                                                lockstep_reducer_statistics* out_statistics) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_statistics == nullptr) return NullArgument("out_statistics");
    const lockstep::ReducerStatistics last = reducer->reducer->statistics();
    lockstep_reducer_statistics full = {};
    full.steps = last.steps;
    full.backward_ms = last.backward_ms;
    full.communication_ms = last.communication_ms;
    full.exposed_ms = last.exposed_ms;
    full.hidden_ms = last.hidden_ms();
    full.bytes_reduced = last.bytes_reduced;
    full.buckets = last.buckets;
    full.buckets_launched_in_backward = last.buckets_launched_in_backward;
    const std::string& why = reducer->reducer->copied_because();
    full.copied_because = why.empty() ? nullptr : why.c_str();
    full.replicas_ms = last.replicas_ms;
    return lockstep::capi::WriteStruct(full, "lockstep_reducer_statistics", out_statistics);
  });
}

lockstep_error* lockstep_reducer_mark_ready_sparse(lockstep_reducer* reducer, size_t index, const int64_t* rows,
                                                   size_t row_count, const lockstep_tensor* values,
                                                   const lockstep_stream* stream) {
  return Guard(reducer, [&]() -> absl::Status {
    const auto on = FindStream(*reducer, stream);
    const auto view = ToTensorView(values, "values");
    absl::Status read = rows == nullptr && row_count > 0 ? NullArgument("rows") : absl::OkStatus();
    read.Update(on.status());
    read.Update(view.status());
    if (!read.ok()) return reducer->reducer->RefuseMark(index, read);
    return reducer->reducer->MarkReadySparse(index, absl::MakeConstSpan(rows, row_count), *view, *on);
  });
}

lockstep_error* lockstep_reducer_averaged_rows(lockstep_reducer* reducer, size_t index, const int64_t** out_rows,
                                               const void** out_values, size_t* out_row_count, int32_t* out_used) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_rows == nullptr) return NullArgument("out_rows");
    if (out_values == nullptr) return NullArgument("out_values");
    if (out_row_count == nullptr) return NullArgument("out_row_count");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::CoalescedGradient* const average,
                              reducer->reducer->SparseAverageOf(index));
    const bool used = average != nullptr;
    *out_rows = used ? average->indices.data() : nullptr;
    *out_values = used ? average->values.data() : nullptr;
    *out_row_count = used ? average->indices.size() : 0;
    if (out_used != nullptr) *out_used = used ? 1 : 0;
    return absl::OkStatus();
  });
}

lockstep_error* lockstep_reducer_get_bucket_statistics(const lockstep_reducer* reducer, size_t bucket,
                                                       lockstep_bucket_statistics* out_statistics) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_statistics == nullptr) return NullArgument("out_statistics");
    const lockstep::StepRecord& step = reducer->reducer->record().last;
    if (bucket >= step.buckets.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("bucket ", bucket, " is out of range: the last step had ", step.buckets.size()));
    }
    const lockstep::BucketStatistics last = lockstep::Statistics(step, bucket);
    lockstep_bucket_statistics filled = {};
    filled.ready_ms = last.ready_ms;
    filled.launched_ms = last.launched_ms;
    filled.wire_begin_ms = last.wire_begin_ms;
    filled.wire_end_ms = last.wire_end_ms;
    filled.done_ms = last.done_ms;
    filled.communication_ms = last.communication_ms;
    filled.exposed_ms = last.exposed_ms;
    filled.hidden_ms = last.hidden_ms();
    filled.bytes = last.bytes;
    return lockstep::capi::WriteStruct(filled, "lockstep_bucket_statistics", out_statistics);
  });
}

lockstep_error* lockstep_reducer_report(const lockstep_reducer* reducer, lockstep_report report, char** out_text) {
  return Guard(reducer, [&]() -> absl::Status {
    if (out_text == nullptr) return NullArgument("out_text");
    switch (report) {
      case LOCKSTEP_REPORT_SUMMARY:
        *out_text = CopyString(lockstep::Summary(reducer->reducer->record()));
        return absl::OkStatus();
      case LOCKSTEP_REPORT_LOGGING_DATA:
        *out_text = CopyString(lockstep::LoggingData(reducer->reducer->record()));
        return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(report, " is no lockstep_report"));
  });
}

lockstep_error* lockstep_reducer_set_logging_sample_rate(lockstep_reducer* reducer, int64_t sample_rate) {
  return Guard(reducer, [&] { return reducer->reducer->SetLoggingSampleRate(sample_rate); });
}

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
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckReducer(reducer));
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
