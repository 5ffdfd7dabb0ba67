#include "kernels/cpu/fold_kernels.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/reduction.h"
#include "base/status.h"
#include "kernels/cpu/reduce_many.h"
#include "kernels/cpu/scale.h"

namespace lockstep {
namespace kernels {
namespace {

class Host final : public FoldKernels {
 public:
  absl::Status Load(const Device&) const override { return absl::OkStatus(); }

  absl::Status Fold(DType dtype, ReduceOp op, void* target, absl::Span<const void* const> sources, size_t count,
                    double factor, Stream& stream) const override {
    if (sources.empty() || sources.size() > kFoldSourcesMax) {
      return absl::InvalidArgumentError("a fold of no source, or of more than there is room for");
    }
    std::vector<const void*> kept(sources.begin(), sources.end());
    if (factor != 1) {
      if (op != ReduceOp::kSum) return absl::InvalidArgumentError("only the sources of a sum can be scaled");
      LOCKSTEP_ASSIGN_OR_RETURN(const ScaledSumFunction sum, ScaledSumFor(dtype));
      return stream.Enqueue([sum, target, kept = std::move(kept), count, factor]() mutable {
        sum(&target, 1, kept.data(), kept.size(), count, factor);
        return absl::OkStatus();
      });
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const ReduceManyFunction reduce, ReduceManyFor(dtype, op));
    return stream.Enqueue([reduce, target, kept = std::move(kept), count]() mutable {
      reduce(&target, 1, kept.data(), kept.size(), count);
      return absl::OkStatus();
    });
  }

  absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor,
                     Stream& stream) const override {
    LOCKSTEP_RETURN_IF_ERROR(kernels::Scale(dtype, target, source, 0, factor));
    return stream.Enqueue([=] { return kernels::Scale(dtype, target, source, count, factor); });
  }

  absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Stream& stream) const override {
    LOCKSTEP_RETURN_IF_ERROR(kernels::DivideTowardZero(dtype, data, 0, divisor));
    return stream.Enqueue([=] { return kernels::DivideTowardZero(dtype, data, count, divisor); });
  }
};

}  // namespace

const FoldKernels* HostFoldKernels() {
  static const Host* const host = new Host;
  return host;
}

}  // namespace kernels
}  // namespace lockstep
