#include "kernels/cuda/check.h"

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

absl::Status CountNonFinite(DType dtype, const void* data, size_t count, uint64_t* on_device, Executor& executor) {
  if (!IsFloat(dtype) && !IsComplex(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("no element of ", Name(dtype), " can be infinite"));
  }
  if (count == 0) return absl::OkStatus();
  const RealForm form = RealFormOf(dtype);
  LOCKSTEP_RETURN_IF_ERROR(CheckAligned("an array", data, SizeOf(form.dtype)));
  const Blocks blocks = BlocksFor(form.parts * count, SizeOf(form.dtype));
  const CheckArguments arguments = {data, form.parts * count, on_device, blocks.elements};
  return executor.Launch(executor.kernels().count_non_finite[static_cast<int>(form.dtype)], blocks.count, &arguments);
}

}  // namespace internal

absl::Status CountNonFinite(DType dtype, const void* data, size_t count, uint64_t* on_device, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::CountNonFinite(dtype, data, count, on_device, executor);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
