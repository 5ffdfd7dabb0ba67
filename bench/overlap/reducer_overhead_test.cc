#include "bench/overlap/reducer_overhead.h"

#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "reducer/bucket_plan.h"
#include "reducer/parameter.h"

namespace lockstep {
namespace bench {
namespace {

TEST(MeasureReducerOverhead, CutsAsManyBucketsFromParametersOfNoSize) {
  std::vector<Parameter> parameters;
  for (const int64_t elements : {4, 100, 3, 50, 1}) {
    Parameter parameter;
    parameter.shape = {elements};
    parameters.push_back(parameter);
  }
  const BucketPlan plan = PlanBuckets(parameters, {4, 100});
  ASSERT_EQ(plan.buckets.size(), 4);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReducerOverhead overhead, MeasureReducerOverhead(plan, 1));
  EXPECT_EQ(overhead.buckets, 4);
  EXPECT_GE(overhead.step_seconds, overhead.mark_ready_seconds);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
