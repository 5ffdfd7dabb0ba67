#include "kernels/cuda/cast.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cuda/stream_executor.h"
#include "kernels/cuda/transfer.h"

namespace lockstep {
namespace kernels {
namespace cuda {

namespace internal {

absl::Status CastScaled(DType to, void* target, DType from, const void* source, size_t count, double factor,
                        uint64_t* saturated, Executor& executor) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCast(to, from, factor));
  if (saturated != nullptr && !IsFloat(to)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot count what becomes infinite in ", Name(to)));
  }
  if (target == source && to == from && factor == 1 && saturated == nullptr) return absl::OkStatus();
  return TransferArray(to, target, from, source, count, factor, saturated, executor);
}

}  // namespace internal

absl::Status CastScaled(DType to, void* target, DType from, const void* source, size_t count, double factor,
                        uint64_t* saturated, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::CastScaled(to, target, from, source, count, factor, saturated, executor);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
