#include <cuda_runtime.h>

#include "bench/overlap/occupy_cuda.h"

namespace lockstep {
namespace bench {
namespace internal {
namespace {

// Nanoseconds, the same for all of the device.
__device__ uint64_t Now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// One thread.
__global__ void WatchClock(uint64_t nanoseconds) {
  const uint64_t begin = Now();
  while (Now() - begin < nanoseconds) continue;
}

}  // namespace

int LaunchClockWatcher(void* stream, uint64_t nanoseconds) {
  WatchClock<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(nanoseconds);
  return cudaGetLastError();
}

}  // namespace internal
}  // namespace bench
}  // namespace lockstep
