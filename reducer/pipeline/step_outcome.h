// StepOutcome: how a synchronised backward went. A failure on one rank reaches the others as `failed` in the status trailers of its
// buckets, and as a posted message beside them. So all ranks return the same error.

#ifndef REDUCER_PIPELINE_STEP_OUTCOME_H_
#define REDUCER_PIPELINE_STEP_OUTCOME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "comm/communicator.h"

namespace lockstep {

// Thread-safe.
class StepOutcome {
 public:
  // The communicator outlives this.
  explicit StepOutcome(Communicator* communicator) : communicator_(communicator) {}

  // Messages of step k are posted under topic first_topic + k, which nobody else uses. Call it before the first step.
  void set_first_topic(uint64_t topic) { first_topic_ = topic; }

  void Begin(uint64_t step);

  // This rank failed, in the buckets from `first_bucket` on. The first failure is reported, for the buckets of all
  // failures. `provisional`: the next failure, which says more, replaces this one unless a bucket was marked failed.
  void Fail(const absl::Status& status, size_t first_bucket, bool provisional = false);
  // The communicator failed, which all ranks learn by themselves.
  void FailCommunication(const absl::Status& status);

  // Whether to set `failed` in the trailer of the bucket, which is about to be sent. If so, the message was posted.
  bool MarksFailed(size_t bucket);
  // Whether some bucket was marked failed.
  bool told() const;

  // How the step went. Waits for messages, which were posted before the trailers were sent, up to 5 s.
  // RETURNS  OK; or, if the last bucket counted `failed_ranks`, FAILED_PRECONDITION with the same text on all ranks, which ends with
  //          `more`; or this rank's own failure, which came too late to be sent
  absl::Status Conclude(int failed_ranks, const std::string& more);
  // The first error of FailCommunication, or OK.
  absl::Status communication() const;
  // FAILED_PRECONDITION with the messages of a step that `failed_ranks` ranks (at least one) posted: waits as Conclude.
  absl::Status Incomplete(uint64_t step, int failed_ranks, const std::string& more) const;

 private:
  Communicator* const communicator_;
  uint64_t first_topic_ = 0;  // constant from the first step on

  // Guarded by mu_.
  mutable Mutex mu_;
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool provisional_ ABSL_GUARDED_BY(mu_) = false;
  size_t first_bucket_ ABSL_GUARDED_BY(mu_) = 0;
  bool posted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status communication_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_STEP_OUTCOME_H_
