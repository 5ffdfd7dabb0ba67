#include "gtest/gtest.h"
#include "kernels/cuda/flatten_conformance.h"
#include "kernels/cuda/test_rig.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

INSTANTIATE_TEST_SUITE_P(OnADevice, FlattenConformance, testing::Values(&MakeDeviceRig));

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
