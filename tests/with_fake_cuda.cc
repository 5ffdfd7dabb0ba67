// Linked into a GPU test, this makes it run here as well: on a CUDA in memory, whose streams are threads.

#include "base/device/cuda/cuda_api_testing.h"

namespace lockstep {
namespace {

[[maybe_unused]] FakeCuda* const fake_cuda = new FakeCuda;

}  // namespace
}  // namespace lockstep
