#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "reducer/reducer.h"
#include "reducer/report/reports.h"

using lockstep::capi::CopyString;
using lockstep::capi::Guard;
using lockstep::capi::NullArgument;

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
