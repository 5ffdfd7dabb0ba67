#include <cuda_runtime.h>

#include "base/device/cuda/cuda_probe_internal.h"

namespace lockstep {
namespace internal {
namespace {

// One thread.
__global__ void WriteInt(int* target, int value) { *target = value; }

}  // namespace

int LaunchWriteInt(int* target, int value, void* stream) {
  WriteInt<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(target, value);
  return cudaGetLastError();
}

}  // namespace internal
}  // namespace lockstep
