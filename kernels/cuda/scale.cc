#include "kernels/cuda/scale.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/stream_executor.h"
#include "kernels/cuda/transfer.h"

namespace lockstep {
namespace kernels {
namespace cuda {

namespace internal {

absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor, Executor& executor) {
  if (!IsFloat(dtype) && !IsComplex(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot scale ", Name(dtype), " by a factor: only floats and complex numbers can be"));
  }
  return TransferArray(dtype, target, dtype, source, count, factor, /*may_copy=*/false, nullptr, executor);
}

absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Executor& executor) {
  if (!IsInteger(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot divide ", Name(dtype), " toward zero: it is no integer"));
  }
  if (divisor <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot divide ", Name(dtype), " by ", divisor, ": the divisor must be positive"));
  }
  if (count == 0) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(CheckAligned("an array", data, SizeOf(dtype)));
  const Blocks blocks = BlocksFor(count, SizeOf(dtype));
  const DivideArguments arguments = {data, count, divisor, blocks.elements};
  return executor.Launch(executor.kernels().divide[static_cast<int>(dtype)], blocks.count, &arguments);
}

}  // namespace internal

absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::Scale(dtype, target, source, count, factor, executor);
}

absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::DivideTowardZero(dtype, data, count, divisor, executor);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
