#include "kernels/cuda/bucket_kernels.h"

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/cuda/flatten.h"

namespace lockstep {
namespace kernels {
namespace {

class Cuda final : public BucketKernels {
 public:
  absl::Status Gather(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                      DType flat_dtype, double factor, Stream& stream) const override {
    return cuda::FlattenViews(pieces, entries, flat, flat_dtype, factor, stream);
  }

  absl::Status Spread(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                      const BucketGate& gate, Stream& stream) const override {
    return cuda::UnflattenViews(pieces, flat, flat_dtype, factor, &gate, stream);
  }
};

}  // namespace

const BucketKernels* CudaBucketKernels() {
  static const Cuda* const kernels = new Cuda;
  return kernels;
}

}  // namespace kernels
}  // namespace lockstep
