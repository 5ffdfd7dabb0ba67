// StepOutcome: how a synchronised backward went. What fails on one rank travels to the others behind its buckets' data, as a mark, and
// beside them, as a note; so all return the same error.

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

  // Notes of step k are left under topic first_topic + k, which nobody else uses. Before the first step.
  void set_first_topic(uint64_t topic) { first_topic_ = topic; }

  void Begin(uint64_t step);

  // This rank's own failure, which concerns the buckets from `first_bucket` on. The first one is told; buckets are those of any, since
  // a later failure may concern an earlier bucket. `provisional`: the next one, which has all there is to say, takes its place if no
  // bucket has carried it by then.
  void Fail(const absl::Status& status, size_t first_bucket, bool provisional = false);
  // The communicator's, which all ranks hear of by themselves.
  void FailCommunication(const absl::Status& status);

  // Whether the bucket, about to be sent, must carry the mark. What it stands for was noted before this returns.
  bool Poisons(size_t bucket);
  // Whether some bucket did.
  bool told() const;

  // How the step went: OK, or FAILED_PRECONDITION with the same text on all ranks when `failed_ranks` have sent their mark by the last
  // bucket; else this rank's own failure, too late for the others to hear. `more` is appended to what all say. Waits for notes, which
  // were posted before the marks were sent, up to 5 s.
  absl::Status Conclude(int failed_ranks, const std::string& more);
  // What FailCommunication was told first.
  absl::Status communication() const;
  // FAILED_PRECONDITION with the notes that `failed_ranks` ranks, at least one, have left of a step: likewise.
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
  bool noted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status communication_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_STEP_OUTCOME_H_
