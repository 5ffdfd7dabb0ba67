#include "bench/overlap/matmul.h"

#include <array>

#include "base/cuda_api.h"
#include "base/cuda_error.h"
#include "base/cuda_guard.h"
#include "base/status.h"
#include "bench/overlap/matmul_inl.h"

namespace lockstep {
namespace bench {
namespace {

// As a device runs a block, but for the order of its threads between two waits.
void RunBlock(const MatmulArguments& matrices, uint32_t row, uint32_t column) {
  Tiles tiles;
  std::array<Sums, kThreads> sums = {};
  for (uint32_t depth = 0; depth < matrices.depth; depth += kTileDepth) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) LoadTiles(matrices, row, column, depth, thread, tiles);
    for (uint32_t thread = 0; thread < kThreads; ++thread) AddProducts(tiles, thread, sums[thread]);
  }
  for (uint32_t thread = 0; thread < kThreads; ++thread) StoreSums(matrices, row, column, thread, sums[thread]);
}

void RunOnHost(const MatmulArguments& matrices) {
  for (uint32_t y = 0; y < TilesAlong(matrices.rows); ++y) {
    for (uint32_t x = 0; x < TilesAlong(matrices.columns); ++x) RunBlock(matrices, y * kTile, x * kTile);
  }
}

}  // namespace

absl::Status Matmul(Stream& stream, const MatmulArguments& arguments) {
  const DeviceId device = stream.device();
  if (device.kind == DeviceKind::kHost) {
    return stream.Enqueue([arguments] {
      RunOnHost(arguments);
      return absl::OkStatus();
    });
  }
  const CudaGuard guard(TheCudaApi(), device.index);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = internal::LaunchMatmul(stream.native(), arguments);
  return CudaStatus(code, "launch of a product of matrices", device.index);
}

}  // namespace bench
}  // namespace lockstep
