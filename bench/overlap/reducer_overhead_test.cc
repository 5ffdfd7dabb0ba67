#include "bench/overlap/reducer_overhead.h"

#include <cstddef>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "reducer/bucket_plan.h"

namespace lockstep {
namespace bench {
namespace {

TEST(MeasureReducerOverhead, CutsAsManyBucketsFromParametersOfNoSize) {
  BucketPlan plan;
  for (const size_t parameters : {1, 1, 2, 1}) {
    BucketPlan::Bucket bucket;
    bucket.slots.resize(parameters);
    plan.buckets.push_back(bucket);
    plan.locations.resize(plan.locations.size() + parameters);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReducerOverhead overhead, MeasureReducerOverhead(plan, 1));
  EXPECT_EQ(overhead.buckets, 4);
  EXPECT_GE(overhead.step_seconds, overhead.mark_ready_seconds);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep
