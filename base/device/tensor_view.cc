#include "base/device/tensor_view.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {
namespace {

using Dimensions = absl::InlinedVector<int64_t, 4>;

// One dimension with more than one element.
struct Dimension {
  int64_t extent;
  int64_t stride;
};

std::string Join(absl::Span<const int64_t> values) { return absl::StrCat("[", absl::StrJoin(values, ", "), "]"); }

absl::Status Bad(DType dtype, absl::Span<const int64_t> shape, absl::string_view rule) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Name(dtype), Join(shape), ": ", rule));
}

// The unit of alignment: a complex number is two floats.
size_t AlignmentOf(DType dtype) { return IsComplex(dtype) ? SizeOf(dtype) / 2 : SizeOf(dtype); }

// False when the product of the extents, zeros apart, overflows: an extent of zero must not hide nonsense beside it.
bool RowMajorStrides(absl::Span<const int64_t> shape, Dimensions* strides) {
  strides->resize(shape.size());
  int64_t next = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    (*strides)[i] = next;
    if (__builtin_mul_overflow(next, std::max<int64_t>(shape[i], 1), &next)) return false;
  }
  return true;
}

bool IsRowMajor(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// Elements from the first to one past the last, for a shape without zeros; nothing on overflow.
bool ElementExtent(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides, int64_t* extent) {
  *extent = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach)) return false;
    if (__builtin_add_overflow(*extent, reach, extent)) return false;
  }
  return true;
}

// Innermost first.
absl::InlinedVector<Dimension, 4> SortedByStride(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides) {
  absl::InlinedVector<Dimension, 4> dimensions;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1) dimensions.push_back({shape[i], strides[i]});
  }
  std::sort(dimensions.begin(), dimensions.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  return dimensions;
}

// Whether every step of a dimension leaps over all that the dimensions inside it reach. That is sufficient for distinct
// elements; the exotic strides that interleave without colliding are refused too.
bool Distinct(absl::Span<const Dimension> innermost_first) {
  int64_t reach = 0;
  for (const Dimension& dimension : innermost_first) {
    if (dimension.stride <= reach) return false;
    reach += (dimension.extent - 1) * dimension.stride;
  }
  return true;
}

struct ByteRange {
  uintptr_t begin;
  uintptr_t end;
};

ByteRange Bytes(const TensorView& view) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(view.data());
  int64_t extent = 0;
  // Create has proved that nothing overflows.
  if (view.elements() > 0) ElementExtent(view.shape(), view.strides(), &extent);
  return {begin, begin + static_cast<uintptr_t>(extent) * SizeOf(view.dtype())};
}

}  // namespace

absl::StatusOr<TensorView> TensorView::Create(void* data, DType dtype, absl::Span<const int64_t> shape,
                                              absl::Span<const int64_t> strides, DeviceId device) {
  if (!IsValid(dtype)) return absl::InvalidArgumentError(absl::StrCat("tensor: unknown ", Name(dtype)));
  if (shape.size() > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Name(dtype), ": ", shape.size(), " dimensions, at most ", kMaxRank, " are supported"));
  }
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; })) {
    return Bad(dtype, shape, "negative extent");
  }

  TensorView view;
  view.data_ = data;
  view.dtype_ = dtype;
  view.device_ = device;
  view.shape_.assign(shape.begin(), shape.end());
  if (!RowMajorStrides(shape, &view.strides_)) return Bad(dtype, shape, "the number of elements overflows");
  if (!strides.empty()) {
    if (strides.size() != shape.size()) {
      return Bad(dtype, shape,
                 absl::StrCat("strides ", Join(strides), " do not match the shape: ", strides.size(), " for ",
                              shape.size(), " dimensions"));
    }
    if (std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; })) {
      return Bad(dtype, shape, absl::StrCat("negative stride in ", Join(strides)));
    }
    view.strides_.assign(strides.begin(), strides.end());
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return view;

  int64_t extent = 0;
  int64_t bytes = 0;
  uintptr_t end = 0;
  if (!ElementExtent(view.shape_, view.strides_, &extent) ||
      __builtin_mul_overflow(extent, static_cast<int64_t>(SizeOf(dtype)), &bytes) ||
      __builtin_add_overflow(reinterpret_cast<uintptr_t>(data), static_cast<uintptr_t>(bytes), &end)) {
    return Bad(dtype, shape, absl::StrCat("with strides ", Join(view.strides_), " the size in bytes overflows"));
  }
  // Of the strides that follow from the shape there is less to find out.
  const bool row_major = strides.empty();
  if (!row_major && !Distinct(SortedByStride(view.shape_, view.strides_))) {
    return Bad(dtype, shape, absl::StrCat("with strides ", Join(view.strides_), " elements overlap"));
  }
  if (data == nullptr) return Bad(dtype, shape, "null data");
  if (reinterpret_cast<uintptr_t>(data) % AlignmentOf(dtype) != 0) {
    return Bad(dtype, shape,
               absl::StrCat("data at 0x", absl::Hex(reinterpret_cast<uintptr_t>(data)), " is not aligned to ",
                            AlignmentOf(dtype), " bytes"));
  }

  view.elements_ = static_cast<size_t>(extent);
  if (row_major) return view;
  view.elements_ = 1;
  for (int64_t dimension : shape) view.elements_ *= static_cast<size_t>(dimension);
  view.contiguous_ = IsRowMajor(view.shape_, view.strides_);
  view.dense_ = static_cast<size_t>(extent) == view.elements_;
  return view;
}

absl::StatusOr<TensorView> TensorView::Vector(void* data, DType dtype, int64_t count) {
  return Create(data, dtype, {count}, {}, DeviceId());
}

std::string TensorView::ToString() const {
  if (shape_.empty() && elements_ == 0) return "no tensor";
  std::string text = absl::StrCat(Name(dtype_), Join(shape_));
  if (!contiguous_) absl::StrAppend(&text, " strides ", Join(strides_));
  return absl::StrCat(text, " on ", Name(device_));
}

bool Overlap(const TensorView& a, const TensorView& b) {
  // Devices are not compared: one address space covers the host and its GPUs.
  const ByteRange bytes_a = Bytes(a);
  const ByteRange bytes_b = Bytes(b);
  return bytes_a.begin < bytes_b.end && bytes_b.begin < bytes_a.end && a.elements() > 0 && b.elements() > 0;
}

bool SameLayout(const TensorView& a, const TensorView& b) {
  if (a.shape() != b.shape()) return false;
  if (a.elements() == 0 && b.elements() == 0) return true;
  for (size_t i = 0; i < a.shape().size(); ++i) {
    if (a.shape()[i] > 1 && a.strides()[i] != b.strides()[i]) return false;
  }
  return true;
}

}  // namespace lockstep
