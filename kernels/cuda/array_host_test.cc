#include "gtest/gtest.h"
#include "kernels/cuda/array_conformance.h"
#include "kernels/cuda/rig_testing.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

INSTANTIATE_TEST_SUITE_P(OnTheHost, ArrayConformance, testing::Values(&MakeHostRig));

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
