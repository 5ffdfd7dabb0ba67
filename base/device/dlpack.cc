#include "base/device/dlpack.h"

#include <cstddef>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/status.h"
#include "base/types/dtype.h"

namespace lockstep {
namespace {

// The layout that dlpack.h has on every platform with 64-bit pointers.
static_assert(sizeof(lockstep_dl_tensor) == 48, "");
static_assert(offsetof(lockstep_dl_tensor, device) == 8, "");
static_assert(offsetof(lockstep_dl_tensor, ndim) == 16, "");
static_assert(offsetof(lockstep_dl_tensor, dtype) == 20, "");
static_assert(offsetof(lockstep_dl_tensor, shape) == 24, "");
static_assert(offsetof(lockstep_dl_tensor, strides) == 32, "");
static_assert(offsetof(lockstep_dl_tensor, byte_offset) == 40, "");

uint8_t CodeOf(DType dtype) {
  switch (dtype) {
#define LOCKSTEP_CODE(id, code) \
  case DType::k##id:            \
    return code;
#define LOCKSTEP_DTYPE_BOOL(number, id, name, Type) LOCKSTEP_CODE(id, LOCKSTEP_DL_BOOL)
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) \
  LOCKSTEP_CODE(id, std::is_signed<Type>::value ? LOCKSTEP_DL_INT : LOCKSTEP_DL_UINT)
#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, exponent_bits, mantissa_bits, has_infinity, dlpack) \
  LOCKSTEP_CODE(id, dlpack)
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) LOCKSTEP_CODE(id, LOCKSTEP_DL_COMPLEX)
#include "base/types/dtypes.inc"
#undef LOCKSTEP_CODE
  }
  return 0;  // unreachable: a TensorView's dtype is valid
}

absl::StatusOr<DType> FromDlpack(lockstep_dl_data_type type) {
  if (type.lanes != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("DLPack tensor: ", type.lanes, " lanes; only scalar elements (1 lane) are supported"));
  }
  for (DType dtype : kAllDTypes) {
    if (CodeOf(dtype) == type.code && SizeOf(dtype) * 8 == type.bits) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("DLPack tensor: no dtype for type code ", type.code, " with ", type.bits, " bits"));
}

absl::StatusOr<DeviceId> FromDlpack(lockstep_dl_device device) {
  switch (device.device_type) {
    case LOCKSTEP_DL_CPU:
    case LOCKSTEP_DL_CUDA_HOST:
      return DeviceId();
    case LOCKSTEP_DL_CUDA:
    case LOCKSTEP_DL_CUDA_MANAGED:
      if (device.device_id < 0) {
        return absl::InvalidArgumentError(absl::StrCat("DLPack tensor: CUDA device ", device.device_id));
      }
      return DeviceId{DeviceKind::kCuda, device.device_id};
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("DLPack tensor: device type ", device.device_type,
                       " is not supported; supported are CPU (1), CUDA (2), pinned (3) and managed (13) memory"));
  }
}

}  // namespace

absl::StatusOr<TensorView> FromDlpack(const lockstep_dl_tensor& tensor) {
  LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, FromDlpack(tensor.dtype));
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceId device, FromDlpack(tensor.device));
  if (tensor.ndim < 0) return absl::InvalidArgumentError(absl::StrCat("DLPack tensor: ndim is ", tensor.ndim));
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("DLPack tensor: null shape with ndim ", tensor.ndim));
  }
  uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address != 0 && __builtin_add_overflow(address, tensor.byte_offset, &address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DLPack tensor: byte_offset ", tensor.byte_offset, " leaves the address space"));
  }
  const size_t rank = static_cast<size_t>(tensor.ndim);
  return TensorView::Create(
      reinterpret_cast<void*>(address), dtype, absl::MakeConstSpan(tensor.shape, rank),
      tensor.strides != nullptr ? absl::MakeConstSpan(tensor.strides, rank) : absl::Span<const int64_t>(), device);
}

}  // namespace lockstep
