#include "kernels/cpu/reduce_many.h"

#include "base/status.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/variant.h"

namespace lockstep {
namespace kernels {

absl::StatusOr<ReduceManyFunction> ReduceManyFor(DType dtype, ReduceOp op) {
  LOCKSTEP_RETURN_IF_ERROR(CombineFor(dtype, op).status());
  return ActiveTable().reduce_many[static_cast<int>(dtype)][static_cast<int>(op)];
}

}  // namespace kernels
}  // namespace lockstep
