#include "base/cuda_probe_internal.h"

namespace lockstep {
namespace internal {

CudaCount CountCudaDevices() { return {0, "built without CUDA"}; }

std::string RunCudaSelfTest() { return "built without CUDA"; }

}  // namespace internal
}  // namespace lockstep
