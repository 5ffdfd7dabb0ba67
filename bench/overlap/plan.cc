#include "bench/overlap/plan.h"

#include <algorithm>

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

double IdealStepSeconds(double compute_seconds, absl::Span<const BucketCost> buckets) {
  double now = 0;
  double computed = 0;  // seconds of computation that are done by now
  for (const BucketCost& bucket : buckets) {
    const double awaited = std::max(0.0, bucket.ready_seconds - computed);
    computed += awaited;
    now += awaited;
    now += bucket.wire_seconds;
    // One that keeps more than a core busy leaves nothing of it.
    computed += std::max(0.0, bucket.wire_seconds - bucket.processor_seconds);
    computed = std::min(computed, compute_seconds);
  }
  return now + compute_seconds - computed;
}

}  // namespace bench
}  // namespace lockstep
