// How long a replayed model computes before each of its gradients is there. Pure.

#ifndef BENCH_OVERLAP_COMPUTE_PLAN_H_
#define BENCH_OVERLAP_COMPUTE_PLAN_H_

#include <vector>

#include "bench/overlap/model_table.h"

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

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_COMPUTE_PLAN_H_
