// The conformance suite over a fake CUDA: what is ours of the device keeps its promises where there is no GPU.

#include "base/device/cuda/cuda_api_testing.h"
#include "base/device/cuda/cuda_device.h"
#include "gtest/gtest.h"
#include "tests/device_conformance.h"

namespace lockstep {

INSTANTIATE_TEST_SUITE_P(FakeCuda, DeviceConformance, testing::Values(DeviceFactory([] {
                           [[maybe_unused]] static FakeCuda* const fake = new FakeCuda;
                           return CudaDevice(1);
                         })));

}  // namespace lockstep
