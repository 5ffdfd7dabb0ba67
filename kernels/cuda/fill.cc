#include "kernels/cuda/fill.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/stream_executor.h"
#include "kernels/cuda/transfer.h"

namespace lockstep {
namespace kernels {
namespace cuda {

namespace {

// Whether T has the value; *element is it then.
template <typename T>
bool MakeInteger(double value, void* element) {
  // The first number beyond the largest is a power of two, and so exact.
  const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (!(value >= static_cast<double>(std::numeric_limits<T>::min()) && value < end) || value != std::floor(value)) {
    return false;
  }
  const auto whole = static_cast<T>(value);
  std::memcpy(element, &whole, sizeof(whole));
  return true;
}

bool MakeWhole(DType dtype, double value, void* element) {
  switch (dtype) {
#define LOCKSTEP_DTYPE_BOOL(number, id, name, Type) \
  case DType::k##id:                                \
    return (value == 0 || value == 1) && MakeInteger<Type>(value, element);
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) \
  case DType::k##id:                                   \
    return MakeInteger<Type>(value, element);
#define LOCKSTEP_DTYPE(number, id, name, Kind) \
  case DType::k##id:                           \
    break;
#include "base/types/dtypes.inc"
  }
  return false;
}

absl::Status MakeElement(DType dtype, double value, void* element) {
  if (IsFloat(dtype) || IsComplex(dtype)) {
    return kernels::CastScaled(RealFormOf(dtype).dtype, element, DType::kF64, &value, 1, 1.0);
  }
  if (IsValid(dtype) && MakeWhole(dtype, value, element)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot fill an array of ", Name(dtype), " with ", value));
}

int LogarithmOf(size_t bytes) {
  int logarithm = 0;
  while (bytes > size_t{1} << logarithm) ++logarithm;
  return logarithm;
}

}  // namespace

namespace internal {

absl::Status Fill(DType dtype, void* target, size_t count, double value, Executor& executor) {
  FillArguments arguments = {};
  auto* const pattern = reinterpret_cast<char*>(arguments.pattern);
  LOCKSTEP_RETURN_IF_ERROR(MakeElement(dtype, value, pattern));
  const size_t size = SizeOf(dtype);
  LOCKSTEP_RETURN_IF_ERROR(CheckAligned("an array", target, size));
  if (count == 0) return absl::OkStatus();
  for (size_t at = size; at < sizeof(arguments.pattern); at += size) std::memcpy(pattern + at, pattern, size);
  const Blocks blocks = BlocksFor(count, size);
  arguments.target = target;
  arguments.count = count;
  arguments.block_elements = blocks.elements;
  return executor.Launch(executor.kernels().fill[LogarithmOf(size)], blocks.count, &arguments);
}

}  // namespace internal

absl::Status Fill(DType dtype, void* target, size_t count, double value, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::Fill(dtype, target, count, value, executor);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep
