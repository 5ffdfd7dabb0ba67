// Makes a TensorView of DLPack's DLTensor, the struct by which array libraries exchange tensors without copying.

#ifndef BASE_DEVICE_DLPACK_H_
#define BASE_DEVICE_DLPACK_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/device/tensor_view.h"

// DLPack 1.1's DLTensor, under names of our own so that this header and the real dlpack.h can be included together. The
// layouts are equal: a pointer to one may be cast to a pointer to the other.

// DLDeviceType, those of its values that we know.
enum {
  LOCKSTEP_DL_CPU = 1,
  LOCKSTEP_DL_CUDA = 2,
  LOCKSTEP_DL_CUDA_HOST = 3,     // pinned host memory
  LOCKSTEP_DL_CUDA_MANAGED = 13  // managed memory
};

// DLDataTypeCode, those of its values that we know.
enum {
  LOCKSTEP_DL_INT = 0,
  LOCKSTEP_DL_UINT = 1,
  LOCKSTEP_DL_FLOAT = 2,
  LOCKSTEP_DL_BFLOAT = 4,
  LOCKSTEP_DL_COMPLEX = 5,
  LOCKSTEP_DL_BOOL = 6,
  LOCKSTEP_DL_FLOAT8_E4M3FN = 10,
  LOCKSTEP_DL_FLOAT8_E5M2 = 12
};

struct lockstep_dl_device {
  int32_t device_type;  // an enum of 32 bits in dlpack.h
  int32_t device_id;
};

struct lockstep_dl_data_type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct lockstep_dl_tensor {
  void* data;
  lockstep_dl_device device;
  int32_t ndim;
  lockstep_dl_data_type dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; NULL means row-major, which versions before 1.2 allow
  uint64_t byte_offset;
};

namespace lockstep {

// Borrows the tensor's memory and copies its shape. Pinned host memory counts as the host, managed memory as the CUDA
// device whose number it carries. INVALID_ARGUMENT for a device, type code, width or lane count that has no dtype here,
// and for what TensorView::Create refuses.
absl::StatusOr<TensorView> FromDlpack(const lockstep_dl_tensor& tensor);

}  // namespace lockstep

#endif  // BASE_DEVICE_DLPACK_H_
