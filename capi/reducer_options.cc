#include "capi/reducer_options.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clipped.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/hook.h"
#include "capi/tensor.h"
#include "reducer/pipeline/average.h"
#include "reducer/pipeline/bucket_pipeline.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/bucket_plan.h"

namespace lockstep::capi {
namespace {

static_assert(static_cast<int>(Average::kNone) == LOCKSTEP_AVERAGING_NONE, "");
static_assert(static_cast<int>(Average::kPredivide) == LOCKSTEP_AVERAGING_PREDIVIDE, "");

// Extents that a shape or strides pointer of a parameter names.
absl::StatusOr<std::vector<int64_t>> Extents(const int64_t* values, int32_t dimensions) {
  if (dimensions < 0 || dimensions > TensorView::kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat(dimensions, " dimensions, which is not between 0 and ", TensorView::kMaxRank));
  }
  if (values == nullptr) return std::vector<int64_t>();
  return std::vector<int64_t>(values, values + dimensions);
}

absl::StatusOr<Parameter> ToParameter(const lockstep_parameter& given) {
  Parameter parameter;
  parameter.name = given.name == nullptr ? "" : given.name;
  if (given.dimensions > 0 && given.shape == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(given.dimensions, " dimensions, but shape is NULL"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.dtype, ToDType(given.dtype));
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.device, ToDevice(given.device_kind, given.device_index));
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.shape, Extents(given.shape, given.dimensions));
  LOCKSTEP_ASSIGN_OR_RETURN(parameter.strides, Extents(given.strides, given.dimensions));
  LOCKSTEP_RETURN_IF_ERROR(CheckFlag(given.ignored, "ignored"));
  LOCKSTEP_RETURN_IF_ERROR(CheckFlag(given.sparse, "sparse"));
  parameter.ignored = given.ignored != 0;
  parameter.sparse = given.sparse != 0;
  return parameter;
}

// INVALID_ARGUMENT for an option that has no effect without another one.
absl::Status CheckRequired(const lockstep_reducer_options& given) {
  const char* const callback = "LOCKSTEP_HOOK_CALLBACK";
  const bool calls_back = given.hook == LOCKSTEP_HOOK_CALLBACK;
  const struct {
    const char* option;
    bool is_given;
    const char* required;
    bool has_required;
  } rules[] = {
      {"hook_issue", given.hook_issue != nullptr, callback, calls_back},
      {"hook_start", given.hook_start != nullptr, callback, calls_back},
      {"hook_name", given.hook_name != nullptr, callback, calls_back},
      {"hook_context", given.hook_context != nullptr, callback, calls_back},
      {"hook_release", given.hook_release != nullptr, callback, calls_back},
      {"hook_timeout_ms", given.hook_timeout_ms != 0, "hook_start", given.hook_start != nullptr},
      {"predivide_factor", given.predivide_factor != 0, "LOCKSTEP_AVERAGING_PREDIVIDE",
       given.averaging == LOCKSTEP_AVERAGING_PREDIVIDE},
      {"optimizer_context", given.optimizer_context != nullptr, "optimizer_step", given.optimizer_step != nullptr},
      {"optimizer_release", given.optimizer_release != nullptr, "optimizer_step", given.optimizer_step != nullptr},
      {"bucket_caps_bytes", given.bucket_caps_bytes != nullptr, "bucket_cap_count", given.bucket_cap_count > 0},
      {"delayed", given.delayed != nullptr, "delayed_count", given.delayed_count > 0},
      {"delayed_trigger", given.delayed_trigger != 0, "delayed", given.delayed_count > 0},
      {"replicas", given.replicas != nullptr, "replica_count", given.replica_count > 0},
      {"on_drift", given.on_drift != nullptr, "replicas", given.replica_count > 0},
      {"drift_context", given.drift_context != nullptr, "on_drift", given.on_drift != nullptr},
      {"drift_release", given.drift_release != nullptr, "on_drift", given.on_drift != nullptr},
  };
  for (const auto& rule : rules) {
    if (!rule.is_given || rule.has_required) continue;
    return absl::InvalidArgumentError(absl::StrCat(rule.option, " without ", rule.required));
  }
  return absl::OkStatus();
}

absl::Status ReadCaps(const lockstep_reducer_options& given, ReducerOptions* options) {
  if (given.bucket_cap_bytes < 0 || given.first_bucket_cap_bytes < 0) {
    return absl::InvalidArgumentError("a bucket cap is negative");
  }
  // As in DDP, a cap that the user gave holds for the first bucket too.
  if (given.bucket_cap_bytes > 0) options->bucket_caps_bytes = {static_cast<size_t>(given.bucket_cap_bytes)};
  if (given.first_bucket_cap_bytes > 0) {
    options->bucket_caps_bytes = {static_cast<size_t>(given.first_bucket_cap_bytes), options->bucket_caps_bytes.back()};
  }
  if (given.bucket_cap_count == 0) return absl::OkStatus();
  if (given.bucket_caps_bytes == nullptr) return NullArgument("bucket_caps_bytes");
  if (given.bucket_cap_bytes > 0 || given.first_bucket_cap_bytes > 0) {
    return absl::InvalidArgumentError("both a list of bucket caps and bucket_cap_bytes or first_bucket_cap_bytes");
  }
  const absl::Span<const int64_t> caps(given.bucket_caps_bytes, given.bucket_cap_count);
  for (const int64_t cap : caps) {
    if (cap < 0) return absl::InvalidArgumentError("a bucket cap is negative");
  }
  options->bucket_caps_bytes.assign(caps.begin(), caps.end());
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<DType>> ToWire(lockstep_compression compression) {
  switch (compression) {
    case LOCKSTEP_COMPRESSION_NONE:
      return absl::optional<DType>();
    case LOCKSTEP_COMPRESSION_F16:
      return absl::optional<DType>(DType::kF16);
    case LOCKSTEP_COMPRESSION_BF16:
      return absl::optional<DType>(DType::kBF16);
    default:
      return absl::InvalidArgumentError(absl::StrCat(compression, " is no lockstep_compression"));
  }
}

absl::Status ReadHook(const lockstep_reducer_options& given, const std::shared_ptr<World>* world,
                      ReducerOptions* options) {
  LOCKSTEP_ASSIGN_OR_RETURN(options->compress, ToWire(given.compression));
  const bool averages = given.hook != LOCKSTEP_HOOK_NOOP && given.hook != LOCKSTEP_HOOK_CALLBACK;
  if (!averages && given.averaging != LOCKSTEP_AVERAGING_BEFORE) {
    return absl::InvalidArgumentError(given.hook == LOCKSTEP_HOOK_NOOP
                                          ? "averaging and LOCKSTEP_HOOK_NOOP: nothing is averaged"
                                          : "averaging and LOCKSTEP_HOOK_CALLBACK: the hook averages");
  }
  switch (given.hook) {
    case LOCKSTEP_HOOK_NONE:
    case LOCKSTEP_HOOK_ALL_REDUCE:
      return absl::OkStatus();
    case LOCKSTEP_HOOK_FP16_COMPRESS:
    case LOCKSTEP_HOOK_BF16_COMPRESS: {
      const DType wire = given.hook == LOCKSTEP_HOOK_FP16_COMPRESS ? DType::kF16 : DType::kBF16;
      if (options->compress.value_or(wire) != wire) {
        return absl::InvalidArgumentError("hook and compression say different dtypes");
      }
      options->compress = wire;
      options->compressing_hook = given.hook == LOCKSTEP_HOOK_FP16_COMPRESS ? "fp16_compress" : "bf16_compress";
      return absl::OkStatus();
    }
    case LOCKSTEP_HOOK_NOOP:
      options->hook = MakeNoopHook();
      return absl::OkStatus();
    case LOCKSTEP_HOOK_CALLBACK: {
      LOCKSTEP_ASSIGN_OR_RETURN(options->hook, MakeCallbackHook(given, world));
      return absl::OkStatus();
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat(given.hook, " is no lockstep_hook"));
  }
}

OptimizerStep ToOptimizer(lockstep_optimizer_step step, void* context) {
  return [step, context](const ReducedBucket& bucket) {
    std::vector<lockstep_tensor> gradients;
    gradients.reserve(bucket.gradients.size());
    for (const TensorView& gradient : bucket.gradients) gradients.push_back(ToTensor(gradient));
    lockstep_reduced_bucket reduced = {};
    reduced.struct_size = sizeof(reduced);
    reduced.index = bucket.index;
    reduced.count = bucket.count;
    reduced.parameter_count = bucket.parameters.size();
    reduced.parameters = bucket.parameters.data();
    reduced.gradients = gradients.data();
    if (bucket.sparse != nullptr) {
      reduced.gradients = nullptr;
      reduced.rows = bucket.sparse->indices.data();
      reduced.row_count = bucket.sparse->indices.size();
      reduced.row_values = bucket.sparse->values.data();
    }
    lockstep_stream stream = {};
    if (bucket.stream != nullptr) {
      stream = ToStream(*bucket.stream);
      reduced.stream = &stream;
    }
    return InCallback([&] { return TakeError(step(context, &reduced)); });
  };
}

}  // namespace

absl::StatusOr<std::vector<Parameter>> ToParameters(const lockstep_parameter* parameters, size_t count,
                                                    const std::string& name) {
  std::vector<Parameter> table;
  if (count == 0) return table;  // the reducer says what it thinks of that
  if (parameters == nullptr) return NullArgument(name.c_str());
  // The caller's size of a row, which may be another than ours.
  const size_t stride = parameters[0].struct_size;
  if (stride % alignof(lockstep_parameter) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "[0].struct_size is ", stride, ", which no lockstep_parameter has: LOCKSTEP_INIT sets it"));
  }
  const char* at = reinterpret_cast<const char*>(parameters);
  for (size_t i = 0; i < count; ++i, at += stride) {
    const auto* const row = reinterpret_cast<const lockstep_parameter*>(at);
    if (row->struct_size != stride) {
      return absl::InvalidArgumentError(absl::StrCat(name, "[", i, "].struct_size is ", row->struct_size, ", but ",
                                                     name, "[0].struct_size is ", stride));
    }
    lockstep_parameter given = {};
    LOCKSTEP_RETURN_IF_ERROR(ReadOptions(row, "lockstep_parameter", &given));
    absl::StatusOr<Parameter> parameter = ToParameter(given);
    if (!parameter.ok()) {
      return Annotate(parameter.status(),
                      absl::StrCat("parameter ", i, " '", given.name == nullptr ? "" : given.name, "'"));
    }
    table.push_back(*std::move(parameter));
  }
  return table;
}

absl::StatusOr<ReducerOptions> ToReducerOptions(const lockstep_reducer_options& given,
                                                const std::shared_ptr<World>* world) {
  ReducerOptions options;
#define LOCKSTEP_OPTION(type, field, initial, name, value)
#define LOCKSTEP_FLAG(field, name)                        \
  LOCKSTEP_RETURN_IF_ERROR(CheckFlag(given.name, #name)); \
  options.field = given.name != 0;
#define LOCKSTEP_OWN_OPTION(type, field, initial)
#include "reducer/reducer_options.inc"
  LOCKSTEP_RETURN_IF_ERROR(CheckRequired(given));
  LOCKSTEP_RETURN_IF_ERROR(ReadCaps(given, &options));
  LOCKSTEP_RETURN_IF_ERROR(CheckFlag(given.caps_from_last, "caps_from_last"));
  LOCKSTEP_RETURN_IF_ERROR(CheckFlag(given.no_overlap, "no_overlap"));
  LOCKSTEP_RETURN_IF_ERROR(CheckFlag(given.no_replan, "no_replan"));
  if (given.caps_from_last != 0) options.caps_from = CapsFrom::kLast;
  if (given.buckets_in_memory_max < 0) return absl::InvalidArgumentError("buckets_in_memory_max is negative");
  options.buckets_in_memory_max = static_cast<size_t>(given.buckets_in_memory_max);
  if (given.averaging < LOCKSTEP_AVERAGING_BEFORE || given.averaging > LOCKSTEP_AVERAGING_PREDIVIDE) {
    return absl::InvalidArgumentError(absl::StrCat(given.averaging, " is no lockstep_averaging"));
  }
  options.average = static_cast<Average>(given.averaging);
  if (options.average == Average::kPredivide) options.predivide_factor = given.predivide_factor;
  options.overlap = given.no_overlap == 0;
  options.replan = given.no_replan == 0;
  if (given.plan != nullptr) options.plan = given.plan;
  LOCKSTEP_RETURN_IF_ERROR(ReadHook(given, world, &options));
  if (given.optimizer_step != nullptr) {
    options.optimizer = ToOptimizer(given.optimizer_step, given.optimizer_context);
  }
  if (given.delayed == nullptr && given.delayed_count > 0) return NullArgument("delayed");
  options.delayed.assign(given.delayed, given.delayed + given.delayed_count);
  options.delayed_trigger = given.delayed_trigger;
  if (given.gradient_memory != nullptr) {
    const absl::string_view memory = given.gradient_memory;
    options.copy_gradients = memory == "copied";
    if (!options.copy_gradients && memory != "in_place") {
      return absl::InvalidArgumentError(
          absl::StrCat("gradient_memory is '", Clipped(memory), "'; known are in_place, copied"));
    }
    if (options.gradient_as_bucket_view) {
      return absl::InvalidArgumentError(
          "both gradient_memory and gradient_as_bucket_view: gradients live in the buckets");
    }
  }
  if (given.trace_path != nullptr) options.trace_path = given.trace_path;
  LOCKSTEP_ASSIGN_OR_RETURN(options.replicas, ToParameters(given.replicas, given.replica_count, "replicas"));
  if (given.on_drift != nullptr) {
    options.on_drift = [call = given.on_drift, context = given.drift_context](const absl::Status& drift) {
      return InCallback([&] { return TakeError(call(context, ToError(drift))); });
    };
  }
  return options;
}

}  // namespace lockstep::capi
