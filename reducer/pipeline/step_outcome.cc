#include "reducer/pipeline/step_outcome.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/error_info.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kMessagesTimeout{5000};

}  // namespace

void StepOutcome::Begin(uint64_t step) {
  MutexLock lock(&mu_);
  step_ = step;
  failure_ = absl::OkStatus();
  first_bucket_ = 0;
  posted_ = false;
  communication_ = absl::OkStatus();
}

void StepOutcome::Fail(const absl::Status& status, size_t first_bucket, bool provisional) {
  if (status.ok()) return;
  MutexLock lock(&mu_);
  if (failure_.ok()) first_bucket_ = first_bucket;
  first_bucket_ = std::min(first_bucket_, first_bucket);
  if (!failure_.ok() && (posted_ || provisional || !provisional_)) return;
  failure_ = status;
  provisional_ = provisional;
}

void StepOutcome::FailCommunication(const absl::Status& status) {
  MutexLock lock(&mu_);
  communication_.Update(status);
}

bool StepOutcome::MarksFailed(size_t bucket) {
  uint64_t topic = 0;
  std::string message;
  {
    MutexLock lock(&mu_);
    if (failure_.ok() || bucket < first_bucket_) return false;
    if (std::exchange(posted_, true)) return true;
    topic = first_topic_ + step_;
    message = PackMessage(failure_);
  }
  communicator_->PostMessage(topic, message);
  return true;
}

bool StepOutcome::told() const {
  MutexLock lock(&mu_);
  return posted_;
}

absl::Status StepOutcome::Conclude(int failed_ranks, const std::string& more) {
  uint64_t step = 0;
  {
    MutexLock lock(&mu_);
    if (!communication_.ok()) return communication_;
    if (failed_ranks == 0) return failure_;
    step = step_;
  }
  return Incomplete(step, failed_ranks, more);
}

absl::Status StepOutcome::communication() const {
  MutexLock lock(&mu_);
  return communication_;
}

absl::Status StepOutcome::Incomplete(uint64_t step, int failed_ranks, const std::string& more) const {
  const auto messages =
      communicator_->AwaitMessages(first_topic_ + step, failed_ranks, Deadline::After(kMessagesTimeout));
  std::string text = absl::StrCat("backward ", step, " is incomplete: ");
  ErrorInfo first;
  if (messages.ok()) {
    absl::StrAppend(&text, absl::StrJoin(*messages, "; ", [&](std::string* out, const auto& message) {
      const absl::Status failure = WithFailedRank(UnpackMessage(absl::StatusCode::kFailedPrecondition, message.second),
                                                  communicator_->WorldRank(message.first).value());
      if (first.empty()) first = GetErrorInfo(failure);
      absl::StrAppend(out, "rank ", message.first.value(), ": ", failure.message());
    }));
  } else {
    absl::StrAppend(&text, failed_ranks, " rank(s) failed, whose messages did not arrive (",
                    messages.status().message(), ")");
  }
  absl::StrAppend(&text, ". ", more);
  return WithErrorInfo(absl::FailedPreconditionError(text), first);
}

}  // namespace lockstep
