// The body of the kernel behind Matmul, for devices and for the host. It is cut where the threads of a block wait for each
// other, so that the host can run each part for one thread after the other:
//
//   for each kTileDepth of the depth: LoadTiles, all wait, AddProducts, all wait
//   StoreSums
//
// A block makes kTile x kTile elements of the product, and a thread kPerThread x kPerThread of these, kStride apart, so that
// neighbouring threads have neighbouring columns. Included by matmul_cuda.cu and matmul.cc and nothing else.

#ifndef BENCH_OVERLAP_MATMUL_INL_H_
#define BENCH_OVERLAP_MATMUL_INL_H_

#include <cstddef>
#include <cstdint>

#include "bench/overlap/matmul_cuda.h"

#if defined(__CUDACC__)
#define LOCKSTEP_MATMUL_BODY __device__ __forceinline__
#else
#define LOCKSTEP_MATMUL_BODY inline
#endif

namespace lockstep {
namespace bench {
namespace {

inline constexpr uint32_t kTile = 64;
inline constexpr uint32_t kTileDepth = 16;
inline constexpr uint32_t kPerThread = 4;
inline constexpr uint32_t kStride = kTile / kPerThread;
inline constexpr uint32_t kThreads = kStride * kStride;

// Of the block at `row`, `column` of the product, which all its threads share.
struct Tiles {
  float left[kTileDepth][kTile + 1];  // turned; one more, so that what a warp writes is in different banks
  float right[kTileDepth][kTile];
};

// A thread's own.
struct Sums {
  float value[kPerThread][kPerThread];
};

inline uint32_t TilesAlong(uint32_t elements) { return (elements + kTile - 1) / kTile; }

// `row`, `column`: the block's first ones in the product. What is beyond the matrices counts as 0.
LOCKSTEP_MATMUL_BODY void LoadTiles(const MatmulArguments& matrices, uint32_t row, uint32_t column, uint32_t depth,
                                    uint32_t thread, Tiles& tiles) {
  for (uint32_t i = thread; i < kTile * kTileDepth; i += kThreads) {
    const uint32_t r = row + i / kTileDepth;
    const uint32_t d = depth + i % kTileDepth;
    const bool inside = r < matrices.rows && d < matrices.depth;
    tiles.left[i % kTileDepth][i / kTileDepth] = inside ? matrices.left[size_t{r} * matrices.depth + d] : 0.0F;
  }
  for (uint32_t i = thread; i < kTile * kTileDepth; i += kThreads) {
    const uint32_t d = depth + i / kTile;
    const uint32_t c = column + i % kTile;
    const bool inside = d < matrices.depth && c < matrices.columns;
    tiles.right[i / kTile][i % kTile] = inside ? matrices.right[size_t{d} * matrices.columns + c] : 0.0F;
  }
}

LOCKSTEP_MATMUL_BODY void AddProducts(const Tiles& tiles, uint32_t thread, Sums& sums) {
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

LOCKSTEP_MATMUL_BODY void StoreSums(const MatmulArguments& matrices, uint32_t row, uint32_t column, uint32_t thread,
                                    const Sums& sums) {
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

}  // namespace
}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_MATMUL_INL_H_
