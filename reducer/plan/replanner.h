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

// Called by one thread at a time, but for held().
class Replanner {
 public:
  // Plan k is posted under topic first_topic + k. Everything else outlives this.
  Replanner(Communicator* communicator, uint64_t first_topic, absl::Span<const Parameter> parameters,
            const PlanRules* rules);
  ~Replanner();

  Replanner(const Replanner&) = delete;
  Replanner& operator=(const Replanner&) = delete;

  // From the next order that is recorded a plan is to be made. Every rank calls it; a plan is adopted once all have. Until it is
  // taken another request is the same one.
  void Request();

  // The order in which this rank's gradients became ready in a backward that went well; those that did not come are taken to come
  // last. Does something only after a request. `fits`: whether a plan can be had with the memory that there is.
  void Record(const std::vector<size_t>& order, const std::function<bool(const BucketPlan&)>& fits);

  // Whether the next plan has arrived. Thread-safe.
  bool held() const { return held_.load(std::memory_order_acquire); }

  // Whether a request has not led to a plan yet: the same on all ranks.
  bool under_way() const { return under_way_; }

  // The plan, when the ranks have agreed to go over to it; empty where rank 0 found none that fits, and all stay with what they have.
  // Warns when this rank's order differs much from it, once in the life of the process.
  BucketGroups Take();

  // Of the last plan taken: the share of pairs of gradients that this rank would have planned in the other order, 0 to 1.
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

// The share of pairs that have another order in `a` than in `b`, which are permutations of the same things (Kendall's distance).
double Disorder(absl::Span<const size_t> a, absl::Span<const size_t> b);

}  // namespace lockstep

#endif  // REDUCER_PLAN_REPLANNER_H_
