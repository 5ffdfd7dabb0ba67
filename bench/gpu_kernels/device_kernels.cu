#include "bench/gpu_kernels/device_kernels.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::bench {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kUnroll = 4;

enum class Hints { kNone, kStreamLoads, kStreamBoth };

__global__ void Empty() {}

// Nanoseconds, the same for all of the device.
__device__ uint64_t Now() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// One thread.
__global__ void WatchClock(uint64_t nanoseconds) {
  const uint64_t begin = Now();
  while (Now() - begin < nanoseconds) continue;
}

template <Hints kHints>
__device__ uint4 Load(const uint4* source) {
  return kHints == Hints::kNone ? *source : __ldcs(source);
}

template <Hints kHints>
__device__ void Store(uint4* target, uint4 value) {
  if (kHints == Hints::kStreamBoth) {
    __stcs(target, value);
  } else {
    *target = value;
  }
}

// kThreads threads a block; each block copies `rounds` times kThreads * kUnroll vectors.
template <Hints kHints>
__global__ void __launch_bounds__(kThreads) Copy(uint4* target, const uint4* source, size_t vectors, unsigned rounds) {
  size_t first = size_t{blockIdx.x} * rounds * kThreads * kUnroll + threadIdx.x;
  for (unsigned round = 0; round < rounds; ++round, first += kThreads * kUnroll) {
    uint4 loaded[kUnroll];
    if (first + (kUnroll - 1) * kThreads < vectors) {
#pragma unroll
      for (unsigned i = 0; i < kUnroll; ++i) loaded[i] = Load<kHints>(source + first + i * kThreads);
#pragma unroll
      for (unsigned i = 0; i < kUnroll; ++i) Store<kHints>(target + first + i * kThreads, loaded[i]);
    } else {
      for (size_t at = first; at < vectors; at += kThreads) Store<kHints>(target + at, Load<kHints>(source + at));
    }
  }
}

struct CopyKind {
  const char* name;
  void (*kernel)(uint4*, const uint4*, size_t, unsigned);
  unsigned rounds;
};

constexpr CopyKind kKinds[kCopyKinds] = {
    {"16 KiB a block", &Copy<Hints::kNone>, 1},
    {"64 KiB a block", &Copy<Hints::kNone>, 4},
    {"16 KiB a block, streaming loads", &Copy<Hints::kStreamLoads>, 1},
    {"64 KiB a block, streaming loads", &Copy<Hints::kStreamLoads>, 4},
    {"16 KiB a block, streaming loads and stores", &Copy<Hints::kStreamBoth>, 1},
    {"64 KiB a block, streaming loads and stores", &Copy<Hints::kStreamBoth>, 4},
};

cudaStream_t StreamOf(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

int UseDevice(int device) { return cudaSetDevice(device); }

int CreateTimer(void** event) { return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)); }

int DestroyTimer(void* event) { return cudaEventDestroy(EventOf(event)); }

int RecordTimer(void* event, void* stream) { return cudaEventRecord(EventOf(event), StreamOf(stream)); }

int MillisecondsBetween(float* ms, void* begin, void* end) {
  const cudaError_t error = cudaEventSynchronize(EventOf(end));
  return error != cudaSuccess ? error : cudaEventElapsedTime(ms, EventOf(begin), EventOf(end));
}

int LaunchEmpty(void* stream) {
  Empty<<<1, kThreads, 0, StreamOf(stream)>>>();
  return cudaGetLastError();
}

int LaunchClockWatcher(uint64_t nanoseconds, void* stream) {
  WatchClock<<<1, 1, 0, StreamOf(stream)>>>(nanoseconds);
  return cudaGetLastError();
}

const char* CopyKindName(int kind) { return kKinds[kind].name; }

int LaunchCopy(int kind, void* target, const void* source, size_t bytes, void* stream) {
  const size_t vectors = bytes / sizeof(uint4);
  const size_t per_block = size_t{kThreads} * kUnroll * kKinds[kind].rounds;
  const auto blocks = static_cast<unsigned>((vectors + per_block - 1) / per_block);
  kKinds[kind].kernel<<<blocks, kThreads, 0, StreamOf(stream)>>>(
      static_cast<uint4*>(target), static_cast<const uint4*>(source), vectors, kKinds[kind].rounds);
  return cudaGetLastError();
}

}  // namespace lockstep::bench
