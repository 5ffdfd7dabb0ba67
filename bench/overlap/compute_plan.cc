#include "bench/overlap/compute_plan.h"

namespace lockstep {
namespace bench {

double ComputePlan::total_seconds() const {
  double sum = forward_seconds;
  for (const double seconds : backward_seconds) sum += seconds;
  return sum;
}

ComputePlan PlanCompute(const ModelTable& model, double total_seconds) {
  ComputePlan plan;
  plan.forward_seconds = total_seconds / 3;
  const double seconds_each = (total_seconds - plan.forward_seconds) / model.multiply_adds();
  for (const ModelParameter& parameter : model.parameters) {
    plan.backward_seconds.push_back(parameter.multiply_adds * seconds_each);
  }
  return plan;
}

}  // namespace bench
}  // namespace lockstep
