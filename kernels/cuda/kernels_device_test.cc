// The kernels on a GPU: their bits are those of the reference, as on the host.

#include "base/device/cuda/cuda_device.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "kernels/cuda/flatten_conformance.h"
#include "kernels/cuda/rig_testing.h"

namespace lockstep::kernels::cuda {
namespace {

INSTANTIATE_TEST_SUITE_P(OnADevice, FlattenConformance, testing::Values(&MakeDeviceRig));

TEST(Preload, LoadsEveryKernelOrSaysWhyNot) {
  const auto devices = CudaDeviceCount();
  if (!devices.ok()) {
    EXPECT_THAT(Preload(0), StatusIs(devices.status().code()));
    return;
  }
  EXPECT_THAT(Preload(0), IsOk());
  EXPECT_THAT(Preload(0), IsOk());
}

}  // namespace
}  // namespace lockstep::kernels::cuda
