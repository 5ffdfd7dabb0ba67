// A borrowed view of memory as a tensor: pointer, dtype, shape, strides, device. Never owns, never allocates.

#ifndef BASE_DEVICE_TENSOR_VIEW_H_
#define BASE_DEVICE_TENSOR_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/types/dtype.h"

namespace lockstep {

// A default-constructed view has no data and no elements. Every other one was accepted by Create and can be addressed:
// its byte extent fits in the address space, no two elements overlap, and there is data if there are elements.
class TensorView {
 public:
  static constexpr int kMaxRank = 32;

  TensorView() = default;

  // `strides` counts elements, one per dimension; empty means row-major contiguous. INVALID_ARGUMENT says which rule a
  // bad view breaks: unknown dtype, more than 32 dimensions, a negative extent or stride, strides that do not match the
  // shape, sizes that overflow, overlapping elements, null data with elements, data not aligned to its element.
  static absl::StatusOr<TensorView> Create(void* data, DType dtype, absl::Span<const int64_t> shape,
                                           absl::Span<const int64_t> strides, DeviceId device);

  // A contiguous vector of `count` elements on the host.
  static absl::StatusOr<TensorView> Vector(void* data, DType dtype, int64_t count);

  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  DeviceId device() const { return device_; }
  absl::Span<const int64_t> shape() const { return shape_; }
  absl::Span<const int64_t> strides() const { return strides_; }
  size_t elements() const { return elements_; }
  size_t bytes() const { return elements_ * SizeOf(dtype_); }

  // Row-major without gaps.
  bool contiguous() const { return contiguous_; }

  // Whether the elements fill [data, data + bytes) exactly, so that it may be copied as one block. True if some order
  // of the dimensions makes it contiguous (channels-last, a transpose).
  bool dense() const { return dense_; }

  // "f32[64, 3, 7, 7] on host", with strides where they are not row-major.
  std::string ToString() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  DeviceId device_;
  bool contiguous_ = true;
  bool dense_ = true;
  size_t elements_ = 0;
  absl::InlinedVector<int64_t, 4> shape_;
  absl::InlinedVector<int64_t, 4> strides_;
};

// Whether the byte extents of two views share a byte.
bool Overlap(const TensorView& a, const TensorView& b);

// Whether the shapes are equal and every element has the same place in both, counted in elements. Strides of dimensions
// with a single element do not count, nor do dtypes and devices.
bool SameLayout(const TensorView& a, const TensorView& b);

}  // namespace lockstep

#endif  // BASE_DEVICE_TENSOR_VIEW_H_
