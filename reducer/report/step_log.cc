#include "reducer/report/step_log.h"

#include "base/log.h"
#include "base/status.h"
#include "reducer/report/summary.h"

namespace lockstep {

absl::Status StepLog::OpenTrace(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(trace_, TraceFile::Open(path, Rank(static_cast<int>(data_.rank))));
  return absl::OkStatus();
}

void StepLog::Finished(const StepRecord& record, const BucketPlan& plan) {
  if (trace_ != nullptr) {
    const absl::Status traced = trace_->Append(record);
    if (!traced.ok()) LOCKSTEP_LOG(kWarning) << traced.message();
  }
  if (LogEnabled(LogLevel::kDebug)) LOCKSTEP_LOG(kDebug) << "\n" << Summarize(record, plan);
}

void StepLog::Failed(const absl::Status& status) {
  if (data_.error.empty()) data_.error = std::string(status.message());
}

std::string StepLog::Summarize(const StepRecord& record, const BucketPlan& plan) const {
  return Summary(record, plan, Rank(static_cast<int>(data_.rank)), static_cast<int>(data_.world_size));
}

}  // namespace lockstep
