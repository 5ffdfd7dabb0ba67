// Replanner: brings a new bucket plan to all ranks, at a step that depends on the requests alone.
//
// A rank that has not requested a plan sets `unrequested` in the status trailer. The first step s that succeeds and whose sum is zero shows
// every rank that all have requested one. Rank 0 then plans buckets in the order in which its gradients became ready in s, and posts the
// plan as a message. Step s + kSteps begins with that plan on every rank. Rank 0 has posted it before it began the step before that one
// (even if steps run ahead, step s is known to be over by then), so that the message has arrived already, unless it takes longer than
// a step. A rank waits only in that case.

#ifndef REDUCER_PLAN_REPLANNER_H_
#define REDUCER_PLAN_REPLANNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

// THREADS one at a time.
class Replanner {
 public:
  // Steps from the one that shows all requests to the one that begins with the plan.
  static constexpr uint64_t kSteps = 3;

  // Plan k is posted under topic first_topic + k. Everything else outlives this.
  Replanner(Communicator* communicator, uint64_t first_topic, absl::Span<const Parameter> parameters,
            const PlanRules* rules);

  Replanner(const Replanner&) = delete;
  Replanner& operator=(const Replanner&) = delete;

  // Requests a plan. Further calls before it is taken do nothing.
  void Request() { requested_ = true; }
  // Whether a request has not led to a plan yet.
  bool requested() const { return requested_; }

  // The step that has just ended shows that all ranks have requested a plan: records the order in which this rank's gradients became ready
  // in it. Missing ones count as last. Rank 0 posts the plan. `fits` returns whether a plan fits in the memory.
  void Record(const std::vector<size_t>& order, const std::function<bool(const BucketPlan&)>& fits);

  // Takes the plan that was recorded last. Waits for it if it has not arrived. Warns, once per process, if this rank's order differs much
  // from it.
  // RETURNS  empty if rank 0 found no plan that fits, or if the communicator has no messages: all ranks keep their plan
  // ERRORS   DEADLINE_EXCEEDED  it did not arrive within 30 s; the call may be repeated
  //          the communicator's error if it has failed
  absl::StatusOr<BucketGroups> Take();

  // The share of pairs of gradients, 0 to 1, that this rank would have planned in the other order. Of the last plan
  // taken.
  double disorder() const { return disorder_; }

 private:
  std::vector<size_t> Completed(const std::vector<size_t>& order) const;
  void WarnOfDisorder(const BucketGroups& groups) const;

  Communicator* const communicator_;
  const uint64_t first_topic_;
  const absl::Span<const Parameter> parameters_;
  const PlanRules* const rules_;

  uint64_t plans_ = 0;  // taken so far
  bool requested_ = false;
  std::vector<size_t> own_order_;  // in which this rank would have planned
  double disorder_ = 0;
};

// Kendall's distance: the share of pairs whose order differs between `a` and `b`. REQUIRES that these are permutations
// of the same values.
double Disorder(absl::Span<const size_t> a, absl::Span<const size_t> b);

}  // namespace lockstep

#endif  // REDUCER_PLAN_REPLANNER_H_
