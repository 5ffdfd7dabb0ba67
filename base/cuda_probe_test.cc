#include "base/cuda_probe.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::Ge;
using testing::HasSubstr;

// That this runs at all proves that a binary with CUDA in it starts on a machine without a driver.
TEST(CudaProbeTest, CountsDevicesOrSaysWhyThereAreNone) {
  const absl::StatusOr<int> count = CudaDeviceCount();
  EXPECT_THAT(count, AnyOf(IsOkAndHolds(Ge(1)),
                           StatusIs(absl::StatusCode::kUnavailable,
                                    AnyOf(HasSubstr("CUDA: cudaGetDeviceCount: "), HasSubstr("CUDA: no device"),
                                          HasSubstr("CUDA: built without CUDA")))));
}

TEST(CudaProbeTest, AskingTwiceGivesTheSameAnswer) {
  EXPECT_EQ(CudaDeviceCount().status(), CudaDeviceCount().status());
}

TEST(CudaProbeTest, KernelRunsWhereThereIsADevice) {
  const absl::Status result = CudaSelfTest();
  if (!CudaDeviceCount().ok()) {
    EXPECT_EQ(result, CudaDeviceCount().status());
    GTEST_SKIP() << result;
  }
  EXPECT_THAT(result, IsOk());
}

}  // namespace
}  // namespace lockstep
