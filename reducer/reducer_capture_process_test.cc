// Steps in CUDA graphs on a GPU, over NCCL, with ranks that are processes (comm/device/nccl/nccl_processes.h). What the fakes
// prove in reducer_capture_test, with CUDA's own captures. Skips without a GPU or NCCL.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/device/nccl/nccl_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer_capture_testing.h"
#include "reducer/reducer_options.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"

namespace lockstep::testing {
namespace {

LOCKSTEP_RANK_FUNCTION(CapturesAndReplays) {
  BeOnAHostOfItsOwn(self);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  LOCKSTEP_ASSIGN_OR_RETURN(NcclWorld world, NcclWorld::Create(ProcessWorldOptions(self, store.get())));
  CaptureAndReplay(*world.communicator, CapturingRank::Options());
  ReducerOptions views = CapturingRank::Options();
  views.gradient_as_bucket_view = true;
  CaptureAndReplay(*world.communicator, views);
  ReducerOptions compressed = CapturingRank::Options();
  compressed.compress = DType::kBF16;
  compressed.buckets_in_memory_max = 1;
  CaptureAndReplay(*world.communicator, compressed);
  // What was expected and did not come is printed.
  return ::testing::Test::HasFailure() ? absl::DataLossError("not as expected") : absl::OkStatus();
}

class ReducerCaptureProcess : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerCaptureProcess, ::testing::Values(1, 2));

TEST_P(ReducerCaptureProcess, ReplaysAverageWhatGradientsAreThen) {
  if (const std::string why = WhyNoNccl(); !why.empty()) GTEST_SKIP() << why;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, ServeTestStore());
  ProcessGroup::Options options = NcclProcessOptions(GetParam(), store->address().ToString());
  options.environment.emplace_back("DEVICE_UNDER_TEST", "cuda");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("CapturesAndReplays", options));
  for (const absl::Status& status : group->WaitAll(Deadline::AfterMs(100'000))) EXPECT_THAT(status, IsOk());
}

}  // namespace
}  // namespace lockstep::testing
