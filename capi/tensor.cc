#include "capi/tensor.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/device/dlpack.h"
#include "base/status.h"
#include "capi/error.h"

namespace lockstep::capi {

absl::StatusOr<DType> ToDType(lockstep_dtype dtype) {
  if (dtype == 0) return absl::InvalidArgumentError("dtype is not set");
  if (dtype < 0 || dtype > kDTypeCount) {
    return absl::InvalidArgumentError(absl::StrCat(dtype, " is no lockstep_dtype"));
  }
  return static_cast<DType>(dtype - 1);
}

lockstep_dtype FromDType(DType dtype) { return static_cast<lockstep_dtype>(dtype) + 1; }
static_assert(static_cast<int>(DType::kBool) + 1 == LOCKSTEP_BOOL, "");
static_assert(static_cast<int>(DType::kComplex128) + 1 == LOCKSTEP_COMPLEX128, "");

absl::StatusOr<ReduceOp> ToReduceOp(lockstep_reduce_op op) {
  if (op < 0 || op >= kReduceOpCount) {
    return absl::InvalidArgumentError(absl::StrCat(op, " is no lockstep_reduce_op"));
  }
  return static_cast<ReduceOp>(op);
}

absl::StatusOr<DeviceId> ToDevice(int32_t kind, int32_t index) {
  if (kind != LOCKSTEP_HOST && kind != LOCKSTEP_CUDA) {
    return absl::InvalidArgumentError(absl::StrCat(kind, " is no lockstep_device_kind"));
  }
  if (index < 0 || (kind == LOCKSTEP_HOST && index != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no device with index ", index));
  }
  return DeviceId{static_cast<DeviceKind>(kind), index};
}

absl::StatusOr<TensorView> ToTensorView(const lockstep_tensor* tensor, const char* name) {
  if (tensor == nullptr) return NullArgument(name);
  const auto convert = [&]() -> absl::StatusOr<TensorView> {
    LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(tensor->dtype));
    LOCKSTEP_ASSIGN_OR_RETURN(const DeviceId device, ToDevice(tensor->device_kind, tensor->device_index));
    if (tensor->dimensions < 0 || tensor->dimensions > TensorView::kMaxRank) {
      return absl::InvalidArgumentError(
          absl::StrCat(tensor->dimensions, " dimensions, which is not between 0 and ", TensorView::kMaxRank));
    }
    if (tensor->dimensions > 0 && tensor->shape == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(tensor->dimensions, " dimensions, but shape is NULL"));
    }
    const size_t dimensions = tensor->dimensions;
    absl::Span<const int64_t> strides;
    if (tensor->strides != nullptr) strides = absl::MakeConstSpan(tensor->strides, dimensions);
    return TensorView::Create(tensor->data, dtype, absl::MakeConstSpan(tensor->shape, dimensions), strides, device);
  };
  absl::StatusOr<TensorView> view = convert();
  if (!view.ok()) return Annotate(view.status(), absl::StrCat("tensor '", name, "'"));
  return view;
}

lockstep_tensor ToTensor(const TensorView& view) {
  lockstep_tensor tensor = {};
  tensor.data = view.data();
  tensor.shape = view.shape().data();
  tensor.strides = view.strides().data();
  tensor.dimensions = static_cast<int32_t>(view.shape().size());
  tensor.dtype = FromDType(view.dtype());
  tensor.device_kind = static_cast<int32_t>(view.device().kind);
  tensor.device_index = view.device().index;
  return tensor;
}

absl::StatusOr<std::vector<TensorView>> ToTensorViews(const lockstep_tensor* tensors, size_t count, const char* name) {
  if (tensors == nullptr && count > 0) return NullArgument(name);
  std::vector<TensorView> views;
  for (size_t i = 0; i < count; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, ToTensorView(&tensors[i], absl::StrCat(name, "[", i, "]").c_str()));
    views.push_back(std::move(view));
  }
  return views;
}

absl::Span<const TensorView> OrNone(const absl::StatusOr<std::vector<TensorView>>& views) {
  return views.ok() ? absl::MakeConstSpan(*views) : absl::Span<const TensorView>();
}

absl::StatusOr<Stream*> Streams::Find(const lockstep_stream* stream, Device* device) {
  if (stream == nullptr) return nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(const DeviceId id, ToDevice(stream->device_kind, stream->device_index));
  if (id.kind == DeviceKind::kHost) {
    return absl::UnimplementedError("the host has no streams but those of hooks: pass NULL, which is the host, inline");
  }
  if (device == nullptr || id != device->id()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the stream is one of ", Name(id), ", which the communicator was not made for"));
  }
  MutexLock lock(&mu_);
  std::unique_ptr<Stream>& found = streams_[stream->handle];
  if (found == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(found, device->BorrowStream(stream->handle));
  }
  return found.get();
}

lockstep_stream ToStream(const Stream& stream) {
  const DeviceId id = stream.device();
  lockstep_stream given = {};
  given.handle = id.kind == DeviceKind::kHost ? const_cast<Stream*>(&stream) : stream.native();
  given.device_kind = static_cast<lockstep_device_kind>(id.kind);
  given.device_index = id.index;
  return given;
}

}  // namespace lockstep::capi

size_t lockstep_dtype_size(lockstep_dtype dtype) {
  const absl::StatusOr<lockstep::DType> known = lockstep::capi::ToDType(dtype);
  return known.ok() ? lockstep::SizeOf(*known) : 0;
}

lockstep_error* lockstep_tensor_from_dlpack(const void* dl_tensor, lockstep_tensor* out_tensor) {
  return lockstep::capi::Guard([&]() -> absl::Status {
    if (dl_tensor == nullptr) return lockstep::capi::NullArgument("dl_tensor");
    if (out_tensor == nullptr) return lockstep::capi::NullArgument("out_tensor");
    const auto& source = *static_cast<const lockstep_dl_tensor*>(dl_tensor);
    LOCKSTEP_ASSIGN_OR_RETURN(const lockstep::TensorView view, lockstep::FromDlpack(source));
    out_tensor->data = view.data();
    out_tensor->shape = source.shape;
    out_tensor->strides = source.strides;
    out_tensor->dimensions = source.ndim;
    out_tensor->dtype = lockstep::capi::FromDType(view.dtype());
    out_tensor->device_kind = static_cast<int32_t>(view.device().kind);
    out_tensor->device_index = view.device().index;
    return absl::OkStatus();
  });
}
