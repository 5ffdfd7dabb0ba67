#include "comm/device_fold.h"

#include <vector>

#include "base/reduce_op.h"
#include "base/status.h"
#include "comm/call_plan.h"
#include "comm/schedule.h"

namespace lockstep {
namespace {

ReduceOp FoldOp(ReduceOp op) { return op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? ReduceOp::kSum : op; }

// A group at a time, on top of what the first operand has become by then. The target may be any of the operands, so it is
// written last.
absl::Status FoldInGroups(DType dtype, ReduceOp op, void* target, absl::Span<const void* const> operands, size_t count,
                          double factor, const kernels::FoldKernels& kernels, Stream& stream) {
  const size_t group = kernels::kFoldSourcesMax;
  void* const sum = const_cast<void*>(operands[0]);
  LOCKSTEP_RETURN_IF_ERROR(kernels.Fold(dtype, op, sum, operands.subspan(0, group), count, factor, stream));
  std::vector<const void*> sources;
  for (size_t done = group; done < operands.size(); done += group - 1) {
    sources.assign(1, sum);
    for (const void* const operand : operands.subspan(done, group - 1)) {
      if (factor != 1) {
        LOCKSTEP_RETURN_IF_ERROR(kernels.Scale(dtype, const_cast<void*>(operand), operand, count, factor, stream));
      }
      sources.push_back(operand);
    }
    const bool last = done + group - 1 >= operands.size();
    LOCKSTEP_RETURN_IF_ERROR(kernels.Fold(dtype, op, last ? target : sum, sources, count, 1.0, stream));
  }
  return absl::OkStatus();
}

}  // namespace

bool ScalesInput(const CollectiveRequest& request) {
  return HasReduction(request.collective) && request.op == ReduceOp::kPremulSum && request.factor != 1;
}

absl::Status FoldOnDevice(const CollectiveRequest& request, const kernels::FoldKernels& kernels, void* target,
                          absl::Span<const void* const> operands, size_t count, Stream& stream) {
  if (count == 0) return absl::OkStatus();
  const int size = static_cast<int>(operands.size());
  const DType dtype = request.dtype;
  const ReduceOp op = FoldOp(request.op);
  const double factor = request.op == ReduceOp::kAvg ? InputFactor(request, size) : 1.0;
  if (operands.size() <= kernels::kFoldSourcesMax) {
    LOCKSTEP_RETURN_IF_ERROR(kernels.Fold(dtype, op, target, operands, count, factor, stream));
  } else {
    LOCKSTEP_RETURN_IF_ERROR(FoldInGroups(dtype, op, target, operands, count, factor, kernels, stream));
  }
  if (request.op != ReduceOp::kAvg || !IsInteger(dtype)) return absl::OkStatus();
  return kernels.DivideTowardZero(dtype, target, count, size, stream);
}

}  // namespace lockstep
