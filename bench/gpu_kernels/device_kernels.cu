#include "bench/gpu_kernels/device_kernels.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep {
namespace bench {
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

// Matrices. A block makes kTile x kTile elements of the product, and a thread kPerThread x kPerThread of these, kStride apart, so that
// neighbouring threads have neighbouring columns.
constexpr uint32_t kTile = 64;
constexpr uint32_t kTileDepth = 16;
constexpr uint32_t kPerThread = 4;
constexpr uint32_t kStride = kTile / kPerThread;
constexpr uint32_t kMatmulThreads = kStride * kStride;

// Of the block at `row`, `column` of the product, which all its threads share.
struct Tiles {
  float left[kTileDepth][kTile + 1];  // turned; one more, so that what a warp writes is in different banks
  float right[kTileDepth][kTile];
};

// A thread's own.
struct Sums {
  float value[kPerThread][kPerThread];
};

uint32_t TilesAlong(uint32_t elements) { return (elements + kTile - 1) / kTile; }

// `row`, `column`: the block's first ones in the product. What is beyond the matrices counts as 0.
__device__ __forceinline__ void LoadTiles(const MatmulArguments& matrices, uint32_t row, uint32_t column,
                                          uint32_t depth, uint32_t thread, Tiles& tiles) {
  for (uint32_t i = thread; i < kTile * kTileDepth; i += kMatmulThreads) {
    const uint32_t r = row + i / kTileDepth;
    const uint32_t d = depth + i % kTileDepth;
    const bool inside = r < matrices.rows && d < matrices.depth;
    tiles.left[i % kTileDepth][i / kTileDepth] = inside ? matrices.left[size_t{r} * matrices.depth + d] : 0.0F;
  }
  for (uint32_t i = thread; i < kTile * kTileDepth; i += kMatmulThreads) {
    const uint32_t d = depth + i / kTile;
    const uint32_t c = column + i % kTile;
    const bool inside = d < matrices.depth && c < matrices.columns;
    tiles.right[i / kTile][i % kTile] = inside ? matrices.right[size_t{d} * matrices.columns + c] : 0.0F;
  }
}

__device__ __forceinline__ void AddProducts(const Tiles& tiles, uint32_t thread, Sums& sums) {
  const uint32_t first_row = thread / kStride;
  const uint32_t first_column = thread % kStride;
  for (uint32_t d = 0; d < kTileDepth; ++d) {
    for (uint32_t i = 0; i < kPerThread; ++i) {
      const float left = tiles.left[d][first_row + i * kStride];
      for (uint32_t j = 0; j < kPerThread; ++j) {
        sums.value[i][j] += left * tiles.right[d][first_column + j * kStride];
      }
    }
  }
}

__device__ __forceinline__ void StoreSums(const MatmulArguments& matrices, uint32_t row, uint32_t column,
                                          uint32_t thread, const Sums& sums) {
  for (uint32_t i = 0; i < kPerThread; ++i) {
    const uint32_t r = row + thread / kStride + i * kStride;
    for (uint32_t j = 0; j < kPerThread; ++j) {
      const uint32_t c = column + thread % kStride + j * kStride;
      if (r < matrices.rows && c < matrices.columns) {
        matrices.product[size_t{r} * matrices.columns + c] = sums.value[i][j];
      }
    }
  }
}

// A block for each tile of the product, columns along x.
__global__ void __launch_bounds__(kMatmulThreads) RunMatmul(const MatmulArguments matrices) {
  __shared__ Tiles tiles;
  Sums sums = {};
  const uint32_t row = blockIdx.y * kTile;
  const uint32_t column = blockIdx.x * kTile;
  for (uint32_t depth = 0; depth < matrices.depth; depth += kTileDepth) {
    LoadTiles(matrices, row, column, depth, threadIdx.x, tiles);
    __syncthreads();
    AddProducts(tiles, threadIdx.x, sums);
    __syncthreads();
  }
  StoreSums(matrices, row, column, threadIdx.x, sums);
}

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

int LaunchMatmul(const MatmulArguments& arguments, void* stream) {
  const dim3 blocks(TilesAlong(arguments.columns), TilesAlong(arguments.rows));
  RunMatmul<<<blocks, kMatmulThreads, 0, StreamOf(stream)>>>(arguments);
  return cudaGetLastError();
}

}  // namespace bench
}  // namespace lockstep
