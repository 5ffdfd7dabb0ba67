// How long a replayed model computes before each of its gradients is there, and the lower bound of a step in which communication
// overlaps with computation. Pure.

#ifndef BENCH_OVERLAP_PLAN_H_
#define BENCH_OVERLAP_PLAN_H_

#include <vector>

#include "absl/types/span.h"
#include "bench/model.h"

namespace lockstep {
namespace bench {

struct ComputePlan {
  double forward_seconds = 0;
  // By parameter: from the gradient before, in the reverse order of definition, to this one.
  std::vector<double> backward_seconds;

  double total_seconds() const;
};

// Shares `total_seconds` out by multiplications. Backward has two where forward has one, for the gradients of a layer's
// input and of its weights (Kaplan et al., arXiv:2001.08361, section 2.1), so forward takes a third of it all.
ComputePlan PlanCompute(const ModelTable& model, double total_seconds);

// One bucket, as it was measured with nothing else going on.
struct BucketCost {
  double ready_seconds = 0;      // from the step's begin to its last gradient, of computation alone
  double wire_seconds = 0;       // of its all-reduce alone
  double processor_seconds = 0;  // that it takes from the core that computes; 0 where computation is elsewhere
};

// Buckets go over the wire in their order, each when its gradients are there and the one before is through: that is the
// least a pipeline of one wire can take, the last bucket's tail included. Where computation and communication share a
// core, what is still to be computed meanwhile gets what the bucket leaves of it: no order of the same work on that
// core ends earlier, since communication put off is wire time at the end, and a bucket takes at least as long as its
// processor time.
//
// `compute_seconds`: of the whole step, not less than any bucket's ready time. Copies into and out of buckets,
// hand-overs between threads and contention for memory are not in it. Neither is what sending one bucket right behind
// another saves (a link that has not fallen idle): a step may end a little before it.
double IdealStepSeconds(double compute_seconds, absl::Span<const BucketCost> buckets);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_PLAN_H_
