#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "capi/tensor.h"
#include "comm/communicator.h"
#include "reducer/agreement.h"
#include "reducer/bucket_plan.h"
#include "reducer/parameter.h"
#include "reducer/reducer.h"

namespace {

using lockstep::TensorView;
using lockstep::capi::CheckNotForked;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;
using lockstep::capi::ReadOptions;
using lockstep::capi::ToTensorView;

static_assert(static_cast<int>(lockstep::Average::kNone) == LOCKSTEP_AVERAGE_NONE, "");
static_assert(static_cast<int>(lockstep::Average::kPredivide) == LOCKSTEP_AVERAGE_PREDIVIDE, "");

absl::Status CheckUsable(const lockstep_reducer* reducer) {
  if (reducer == nullptr) return NullArgument("reducer");
  return CheckNotForked(reducer->fork_generation, "reducer");
}

// Extents that a shape or strides pointer of a parameter names.
absl::StatusOr<std::vector<int64_t>> Extents(const int64_t* values, int32_t dimensions) {
  if (dimensions < 0 || dimensions > TensorView::kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat(dimensions, " dimensions, which is not between 0 and ", TensorView::kMaxRank));
  }
  if (values == nullptr) return std::vector<int64_t>();
  return std::vector<int64_t>(values, values + dimensions);
}

absl::StatusOr<lockstep::Parameter> ToParameter(const lockstep_parameter& given) {
  lockstep::Parameter parameter;
  parameter.name = given.name == nullptr ? "" : given.name;
  if (given.dimensions > 0 && given.shape == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(given.dimensions, " dimensions, but shape is NULL"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.dtype, lockstep::capi::ToDType(given.dtype));
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.device, lockstep::capi::ToDevice(given.device_kind, given.device_index));
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.shape, Extents(given.shape, given.dimensions));
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.strides, Extents(given.strides, given.dimensions));
  parameter.ignored = given.ignored != 0;
  return parameter;
}

absl::StatusOr<std::vector<lockstep::Parameter>> ToParameters(const lockstep_parameter* parameters, size_t count) {
  std::vector<lockstep::Parameter> table;
  if (count == 0) return table;  // the reducer says what it thinks of that
  if (parameters == nullptr) return NullArgument("parameters");
  const size_t stride = parameters[0].struct_size;
  const char* at = reinterpret_cast<const char*>(parameters);
  for (size_t i = 0; i < count; ++i, at += stride) {
    lockstep_parameter given = {};
    LOCKSTEP_RETURN_IF_ERROR(
        ReadOptions(reinterpret_cast<const lockstep_parameter*>(at), "lockstep_parameter", &given));
    absl::StatusOr<lockstep::Parameter> parameter = ToParameter(given);
    if (!parameter.ok()) {
      return lockstep::Annotate(parameter.status(),
                                absl::StrCat("parameter ", i, " '", given.name == nullptr ? "" : given.name, "'"));
    }
    table.push_back(*std::move(parameter));
  }
  return table;
}

absl::StatusOr<lockstep::ReducerOptions> ToOptions(const lockstep_reducer_options& given) {
  lockstep::ReducerOptions options;
  if (given.bucket_cap_bytes < 0 || given.first_bucket_cap_bytes < 0) {
    return absl::InvalidArgumentError("a bucket cap is negative");
  }
  if (given.average < LOCKSTEP_AVERAGE_BEFORE || given.average > LOCKSTEP_AVERAGE_PREDIVIDE) {
    return absl::InvalidArgumentError(absl::StrCat(given.average, " is no lockstep_average"));
  }
  // As in DDP, a cap that the user gave holds for the first bucket too.
  if (given.bucket_cap_bytes > 0) options.bucket_caps_bytes = {static_cast<size_t>(given.bucket_cap_bytes)};
  if (given.first_bucket_cap_bytes > 0) {
    options.bucket_caps_bytes = {static_cast<size_t>(given.first_bucket_cap_bytes), options.bucket_caps_bytes.back()};
  }
  if (given.bucket_cap_count > 0) {
    if (given.bucket_caps_bytes == nullptr) return NullArgument("bucket_caps_bytes");
    if (given.bucket_cap_bytes > 0 || given.first_bucket_cap_bytes > 0) {
      return absl::InvalidArgumentError("both a list of bucket caps and bucket_cap_bytes or first_bucket_cap_bytes");
    }
    const absl::Span<const int64_t> caps(given.bucket_caps_bytes, given.bucket_cap_count);
    for (const int64_t cap : caps) {
      if (cap < 0) return absl::InvalidArgumentError("a bucket cap is negative");
    }
    options.bucket_caps_bytes.assign(caps.begin(), caps.end());
  }
  if (given.caps_from_last != 0) options.caps_from = lockstep::CapsFrom::kLast;
  if (given.buckets_in_memory_max < 0) return absl::InvalidArgumentError("buckets_in_memory_max is negative");
  options.buckets_in_memory_max = static_cast<size_t>(given.buckets_in_memory_max);
  options.average = static_cast<lockstep::Average>(given.average);
  if (options.average == lockstep::Average::kPredivide) options.predivide_factor = given.predivide_factor;
  options.overlap = given.no_overlap == 0;
  return options;
}

}  // namespace

void lockstep_parameter_init(lockstep_parameter* parameter) {
  if (parameter == nullptr) return;
  *parameter = lockstep_parameter{};
  parameter->struct_size = sizeof(*parameter);
  parameter->dtype = LOCKSTEP_F32;
}

void lockstep_reducer_options_init(lockstep_reducer_options* options) {
  if (options == nullptr) return;
  *options = lockstep_reducer_options{};
  options->struct_size = sizeof(*options);
}

lockstep_error* lockstep_reducer_create(lockstep_communicator* communicator, const lockstep_parameter* parameters,
                                        size_t parameter_count, const lockstep_reducer_options* options,
                                        lockstep_reducer** out_reducer) {
  return Guard([&]() -> absl::Status {
    if (communicator == nullptr) return NullArgument("communicator");
    if (out_reducer == nullptr) return NullArgument("out_reducer");
    LOCKSTEP_RETURN_IF_ERROR(CheckNotForked(communicator->fork_generation, "communicator"));
    lockstep_reducer_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_reducer_options", &given));
    lockstep::Communicator* const ranks = communicator->get();
    absl::StatusOr<lockstep::ReducerOptions> reducer_options = ToOptions(given);
    absl::StatusOr<std::vector<lockstep::Parameter>> table = ToParameters(parameters, parameter_count);
    absl::Status local = reducer_options.status();
    local.Update(table.status());
    // The other ranks are about to compare their tables with ours: they are told rather than left waiting.
    if (!local.ok()) return lockstep::AgreeOnParameters(*ranks, local, "", {});
    auto handle = std::make_unique<lockstep_reducer>();
    LOCKSTEP_ASSIGN_OR_RETURN(handle->reducer,
                              lockstep::Reducer::Create(ranks, *std::move(table), *std::move(reducer_options)));
    *out_reducer = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_reducer_destroy(lockstep_reducer* reducer) { lockstep::capi::Destroy(reducer); }

lockstep_error* lockstep_reducer_broadcast(lockstep_reducer* reducer, const lockstep_tensor* tensors,
                                           size_t tensor_count, int32_t root) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    if (tensors == nullptr && tensor_count > 0) return NullArgument("tensors");
    std::vector<TensorView> views;
    for (size_t i = 0; i < tensor_count; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, ToTensorView(&tensors[i], absl::StrCat("tensors[", i, "]").c_str()));
      views.push_back(std::move(view));
    }
    return reducer->reducer->Broadcast(views, lockstep::Rank(root));
  });
}

void lockstep_backward_options_init(lockstep_backward_options* options) {
  if (options == nullptr) return;
  *options = lockstep_backward_options{};
  options->struct_size = sizeof(*options);
}

lockstep_error* lockstep_reducer_begin_backward(lockstep_reducer* reducer, const lockstep_backward_options* options) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    lockstep_backward_options given = {};
    LOCKSTEP_RETURN_IF_ERROR(ReadOptions(options, "lockstep_backward_options", &given));
    lockstep::BackwardOptions backward;
    backward.sync = given.no_sync == 0;
    return reducer->reducer->BeginBackward(backward);
  });
}

lockstep_error* lockstep_reducer_mark_ready(lockstep_reducer* reducer, size_t index, const lockstep_tensor* gradient,
                                            const lockstep_stream* stream) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckStream(stream));
    LOCKSTEP_ASSIGN_OR_RETURN(const TensorView view, ToTensorView(gradient, "gradient"));
    return reducer->reducer->MarkReady(index, view, nullptr);
  });
}

lockstep_error* lockstep_reducer_end_backward(lockstep_reducer* reducer, const lockstep_stream* stream) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::CheckStream(stream));
    return reducer->reducer->EndBackward(nullptr);
  });
}

size_t lockstep_reducer_bucket_count(const lockstep_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->plan().buckets.size();
}

void lockstep_reducer_statistics_init(lockstep_reducer_statistics* statistics) {
  if (statistics == nullptr) return;
  *statistics = lockstep_reducer_statistics{};
  statistics->struct_size = sizeof(*statistics);
}

lockstep_error* lockstep_reducer_get_statistics(const lockstep_reducer* reducer,
                                                lockstep_reducer_statistics* out_statistics) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    if (out_statistics == nullptr) return NullArgument("out_statistics");
    if (out_statistics->struct_size < sizeof(size_t)) {
      return absl::InvalidArgumentError("lockstep_reducer_statistics: call its _init function first");
    }
    const lockstep::ReducerStatistics last = reducer->reducer->statistics();
    lockstep_reducer_statistics full = {};
    full.struct_size = out_statistics->struct_size;
    full.steps = last.steps;
    full.backward_ms = last.backward_ms;
    full.communication_ms = last.communication_ms;
    full.exposed_ms = last.exposed_ms;
    full.hidden_ms = last.hidden_ms();
    full.bytes_reduced = last.bytes_reduced;
    full.buckets = last.buckets;
    full.buckets_launched_in_backward = last.buckets_launched_in_backward;
    // The caller's struct may be of another version: what it has room for.
    std::memcpy(out_statistics, &full, std::min(full.struct_size, sizeof(full)));
    return absl::OkStatus();
  });
}
