#include "gtest/gtest.h"
#include "kernels/cuda/flatten_conformance.h"
#include "kernels/cuda/rig_testing.h"

namespace lockstep::kernels::cuda {
namespace {

INSTANTIATE_TEST_SUITE_P(OnTheHost, FlattenConformance, testing::Values(&MakeHostRig));

}  // namespace
}  // namespace lockstep::kernels::cuda
