// Replanner: brings a new bucket plan to all ranks, without any of them waiting.
//
// Rank 0 records the order in which its gradients become ready, plans buckets by it, and posts the plan as a message; the other ranks fetch
// it meanwhile. A rank that holds the plan clears `unplanned` in the status trailer of its next last bucket. The first step whose sum is
// zero shows every rank that all hold the plan: the next step begins with it, on all of them.

#ifndef REDUCER_PLAN_REPLANNER_H_
#define REDUCER_PLAN_REPLANNER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

// THREADS one at a time; held() any.
class Replanner {
 public:
  // Plan k is posted under topic first_topic + k. Everything else outlives this.
  Replanner(Communicator* communicator, uint64_t first_topic, absl::Span<const Parameter> parameters,
            const PlanRules* rules);
  ~Replanner();

  Replanner(const Replanner&) = delete;
  Replanner& operator=(const Replanner&) = delete;

  // Requests a plan from the next recorded order. Every rank calls it; the plan is adopted once all have. Further calls
  // before it is taken do nothing.
  void Request();

  // Records the order in which this rank's gradients became ready in a backward that succeeded. Missing ones count as
  // last. Does nothing without a request. `fits` tells whether a plan fits in the memory.
  void Record(const std::vector<size_t>& order, const std::function<bool(const BucketPlan&)>& fits);

  // Whether the next plan has arrived. Thread-safe.
  bool held() const { return held_.load(std::memory_order_acquire); }

  // Whether a request has not led to a plan yet: the same on all ranks.
  bool under_way() const { return under_way_; }

  // Takes the plan, when all ranks hold it. Empty if rank 0 found none that fits: all keep their plan. Warns, once per
  // process, if this rank's order differs much from it.
  BucketGroups Take();

  // The share of pairs of gradients, 0 to 1, that this rank would have planned in the other order. Of the last plan
  // taken.
  double disorder() const { return disorder_; }

 private:
  void Fetch(uint64_t topic);
  std::vector<size_t> Completed(const std::vector<size_t>& order) const;
  void WarnOfDisorder() const;

  Communicator* const communicator_;
  const uint64_t first_topic_;
  const absl::Span<const Parameter> parameters_;
  const PlanRules* const rules_;

  uint64_t plans_ = 0;      // requested so far
  bool under_way_ = false;  // from a request until its plan is taken: the same on all ranks, unlike held()
  bool recording_ = false;
  std::vector<size_t> own_order_;
  double disorder_ = 0;
  std::unique_ptr<Stream> fetching_;

  std::atomic<bool> stop_{false};  // says nothing about other memory
  // Released after groups_ was written, acquired before it is read.
  std::atomic<bool> held_{false};
  BucketGroups groups_;
};

// Kendall's distance: the share of pairs whose order differs between `a` and `b`. REQUIRES that these are permutations
// of the same values.
double Disorder(absl::Span<const size_t> a, absl::Span<const size_t> b);

}  // namespace lockstep

#endif  // REDUCER_PLAN_REPLANNER_H_
