#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "reducer/logging_data.h"
#include "reducer/reducer.h"
#include "reducer/statistics.h"

namespace {

using lockstep::capi::CheckUsable;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

// `text` makes it of the reducer.
template <typename Text>
lockstep_error* CopyOut(const lockstep_reducer* reducer, const char* name, char** out, Text&& text) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    if (out == nullptr) return NullArgument(name);
    *out = lockstep::capi::CopyString(text(*reducer->reducer));
    return absl::OkStatus();
  });
}

}  // namespace

void lockstep_bucket_statistics_init(lockstep_bucket_statistics* statistics) {
  if (statistics == nullptr) return;
  *statistics = lockstep_bucket_statistics{};
  statistics->struct_size = sizeof(*statistics);
}

lockstep_error* lockstep_reducer_get_bucket_statistics(const lockstep_reducer* reducer, size_t bucket,
                                                       lockstep_bucket_statistics* out_statistics) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    if (out_statistics == nullptr) return NullArgument("out_statistics");
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::BucketStatistics last, reducer->reducer->bucket_statistics(bucket));
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

lockstep_error* lockstep_reducer_summary(const lockstep_reducer* reducer, char** out_text) {
  return CopyOut(reducer, "out_text", out_text, [](const lockstep::Reducer& of) { return of.Summary(); });
}

lockstep_error* lockstep_reducer_logging_data(const lockstep_reducer* reducer, char** out_json) {
  return CopyOut(reducer, "out_json", out_json,
                 [](const lockstep::Reducer& of) { return lockstep::ToJson(of.logging_data()); });
}

lockstep_error* lockstep_reducer_set_logging_sample_rate(lockstep_reducer* reducer, int64_t sample_rate) {
  return Guard([&]() -> absl::Status {
    LOCKSTEP_RETURN_IF_ERROR(CheckUsable(reducer));
    return reducer->reducer->SetLoggingSampleRate(sample_rate);
  });
}
