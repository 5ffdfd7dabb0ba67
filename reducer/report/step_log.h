// StepLog: what a reducer tells about its steps: DDP's logging data, a trace, and a summary for people. It is told of steps that are
// over, and waits for nothing but the trace's disk.

#ifndef REDUCER_REPORT_STEP_LOG_H_
#define REDUCER_REPORT_STEP_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/rank.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/report/logging_data.h"
#include "reducer/report/step_record.h"
#include "reducer/report/trace_file.h"

namespace lockstep {

// Used by one thread at a time.
class StepLog {
 public:
  explicit StepLog(LoggingData construction) : data_(std::move(construction)) {}

  // The file's error, with its name. Does nothing where neither the path nor the environment asks for a trace.
  absl::Status OpenTrace(const std::string& path);

  LoggingData& data() { return data_; }
  const LoggingData& data() const { return data_; }
  absl::Status SetSampleRate(int64_t rate) { return sampler_.SetSampleRate(rate); }

  // A forward or a backward begins.
  void Publish(const StepRecord& last) { sampler_.Publish(last, anchor_, &data_); }
  // A step is over. Its summary goes to the log at debug level.
  void Finished(const StepRecord& record, const BucketPlan& plan);
  // The first one is kept.
  void Failed(const absl::Status& status);

  std::string Summarize(const StepRecord& record, const BucketPlan& plan) const;

 private:
  const ClockAnchor anchor_;
  LoggingData data_;
  RuntimeSampler sampler_;
  std::unique_ptr<TraceFile> trace_;
};

}  // namespace lockstep

#endif  // REDUCER_REPORT_STEP_LOG_H_
