#include "gtest/gtest.h"
#include "kernels/cuda/reduce_conformance.h"
#include "kernels/cuda/test_rig.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

INSTANTIATE_TEST_SUITE_P(OnTheHost, ReduceConformance, testing::Values(&MakeHostRig));

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
