#include "kernels/cuda/fold_kernels.h"

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "kernels/cuda/preload.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/scale.h"

namespace lockstep {
namespace kernels {
namespace {

static_assert(kFoldSourcesMax <= cuda::kReduceArraysMax, "what a launch takes");

class Cuda final : public FoldKernels {
 public:
  absl::Status Load(const Device& device) const override { return cuda::Preload(device.id().index); }

  absl::Status Fold(DType dtype, ReduceOp op, void* target, absl::Span<const void* const> sources, size_t count,
                    double factor, Stream& stream) const override {
    return cuda::ReduceMany(dtype, op, {&target, 1}, sources, count, factor, stream);
  }

  absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor,
                     Stream& stream) const override {
    return cuda::Scale(dtype, target, source, count, factor, stream);
  }

  absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Stream& stream) const override {
    return cuda::DivideTowardZero(dtype, data, count, divisor, stream);
  }
};

}  // namespace

const FoldKernels* CudaFoldKernels() {
  static const Cuda* const kernels = new Cuda;
  return kernels;
}

}  // namespace kernels
}  // namespace lockstep
