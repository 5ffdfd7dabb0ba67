#include "base/device/cuda/cuda_probe.h"

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// That this runs at all proves that a binary with a kernel in it starts on a machine without a driver.
TEST(CudaProbeTest, KernelRunsWhereThereIsADevice) {
  const absl::Status result = CudaSelfTest();
  if (absl::IsUnavailable(result)) GTEST_SKIP() << result;
  EXPECT_THAT(result, IsOk());
}

}  // namespace
}  // namespace lockstep
