// Converts tensors, dtypes and devices between the C ABI and base.

#ifndef CAPI_TENSOR_H_
#define CAPI_TENSOR_H_

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "capi/lockstep.h"

namespace lockstep::capi {

// Errors name the argument.
absl::StatusOr<TensorView> ToTensorView(const lockstep_tensor* tensor, const char* name);

// Borrows the view's shape and strides.
lockstep_tensor ToTensor(const TensorView& view);

// An array of them; may be null when `count` is 0. Errors name the argument and the place.
absl::StatusOr<std::vector<TensorView>> ToTensorViews(const lockstep_tensor* tensors, size_t count, const char* name);

// The views, or none if they could not be read: the other ranks are in the collective already, so this one takes part anyway.
absl::Span<const TensorView> OrNone(const absl::StatusOr<std::vector<TensorView>>& views);

// The ABI's dtypes are ours plus 1: its 0 is not a dtype.
absl::StatusOr<DType> ToDType(lockstep_dtype dtype);
lockstep_dtype FromDType(DType dtype);

absl::StatusOr<ReduceOp> ToReduceOp(lockstep_reduce_op op);
absl::StatusOr<DeviceId> ToDevice(int32_t kind, int32_t index);

// The embedder's streams. Each is borrowed, by its handle, when it is first passed.
//
// Thread-safe. What it gives out lives as long as it does.
class Streams {
 public:
  // The stream of `device`, which is null if there is only the host. Null for NULL, which means the host, inline.
  // ERRORS  INVALID_ARGUMENT  the stream is of another device
  //         UNIMPLEMENTED     it is a stream of the host
  absl::StatusOr<Stream*> Find(const lockstep_stream* stream, Device* device) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  std::map<void*, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mu_);
};

// The stream for the embedder. Its handle is the device's own or, for a stream of the host, which only a hook gets, our Stream*.
lockstep_stream ToStream(const Stream& stream);

}  // namespace lockstep::capi

#endif  // CAPI_TENSOR_H_
