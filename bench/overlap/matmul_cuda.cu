#include "bench/overlap/matmul_cuda.h"

#include <cuda_runtime.h>

#include "bench/overlap/matmul_inl.h"

namespace lockstep {
namespace bench {
namespace internal {
namespace {

// A block for each tile of the product, columns along x.
__global__ void __launch_bounds__(kThreads) RunMatmul(const MatmulArguments matrices) {
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

}  // namespace

int LaunchMatmul(void* stream, const MatmulArguments& arguments) {
  const dim3 blocks(TilesAlong(arguments.columns), TilesAlong(arguments.rows));
  RunMatmul<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments);
  return cudaGetLastError();
}

}  // namespace internal
}  // namespace bench
}  // namespace lockstep
