#include "kernels/cuda/bucket_kernels.h"

#include <vector>

#include "kernels/cuda/flatten.h"

namespace lockstep {
namespace kernels {
namespace {

std::vector<cuda::ViewPiece> Convert(absl::Span<const BucketPiece> pieces) {
  std::vector<cuda::ViewPiece> converted;
  converted.reserve(pieces.size());
  for (const BucketPiece& piece : pieces) {
    converted.push_back({piece.view, piece.offset, piece.view == nullptr ? piece.count : 0, piece.entry});
  }
  return converted;
}

class Cuda final : public BucketKernels {
 public:
  absl::Status Gather(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                      DType flat_dtype, double factor, Stream& stream) const override {
    std::vector<cuda::FlatValue> values;
    values.reserve(entries.size());
    for (const BucketEntry& entry : entries) values.push_back({entry.index, entry.value});
    return cuda::FlattenViews(Convert(pieces), values, flat, flat_dtype, factor, stream);
  }

  absl::Status Spread(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                      const BucketGate& gate, Stream& stream) const override {
    cuda::UnflattenGate converted;
    converted.tail = gate.tail;
    converted.dtype = gate.dtype;
    converted.closed_by = gate.closed_by;
    converted.joined = gate.joined;
    converted.ranks = gate.ranks;
    converted.count_max = gate.count_max;
    converted.divide_by_live = gate.divide_by_live;
    return cuda::UnflattenViews(Convert(pieces), flat, flat_dtype, factor, &converted, stream);
  }
};

}  // namespace

const BucketKernels* CudaBucketKernels() {
  static const Cuda* const cuda = new Cuda;
  return cuda;
}

}  // namespace kernels
}  // namespace lockstep
