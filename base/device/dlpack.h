// Makes a TensorView of DLPack's DLTensor, the struct by which array libraries exchange tensors without copying.

#ifndef BASE_DEVICE_DLPACK_H_
#define BASE_DEVICE_DLPACK_H_

#include "absl/status/statusor.h"
#include "base/device/dlpack_abi.h"
#include "base/device/tensor_view.h"

namespace lockstep {

// Borrows the tensor's memory and copies its shape. Pinned host memory counts as the host, managed memory as the CUDA
// device whose number it carries. INVALID_ARGUMENT for a device, type code, width or lane count that has no dtype here,
// and for what TensorView::Create refuses.
absl::StatusOr<TensorView> FromDlpack(const lockstep_dl_tensor& tensor);

}  // namespace lockstep

#endif  // BASE_DEVICE_DLPACK_H_
