#include "kernels/cpu/flatten.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"

namespace lockstep {
namespace kernels {
namespace {

// Between the strided side and the conversion: fits the first-level cache beside what it is converted to.
constexpr size_t kStagingBytes = 4096;
constexpr size_t kElementBytesMax = 16;  // complex128

const uint8_t* At(const void* base, size_t element, DType dtype) {
  return static_cast<const uint8_t*>(base) + element * SizeOf(dtype);
}
uint8_t* At(void* base, size_t element, DType dtype) { return static_cast<uint8_t*>(base) + element * SizeOf(dtype); }

// Walks a view's elements in row-major order: a position per dimension, as an odometer.
class RowMajorCursor {
 public:
  explicit RowMajorCursor(const TensorView& view)
      : shape_(view.shape()), strides_(view.strides()), index_(view.shape().size(), 0) {}

  // In elements from the view's data.
  int64_t offset() const { return offset_; }

  void Next() {
    for (size_t d = shape_.size(); d-- > 0;) {
      offset_ += strides_[d];
      if (++index_[d] < shape_[d]) return;
      offset_ -= strides_[d] * shape_[d];
      index_[d] = 0;
    }
  }

 private:
  const absl::Span<const int64_t> shape_;
  const absl::Span<const int64_t> strides_;
  absl::InlinedVector<int64_t, 8> index_;
  int64_t offset_ = 0;
};

enum class Direction { kFlatten, kUnflatten };

// Copies `count` elements of `kBytes` between the cursor's places in `data` and contiguous memory.
template <size_t kBytes, Direction kDirection>
void Move(RowMajorCursor& cursor, void* data, uint8_t* packed, size_t count) {
  for (size_t i = 0; i < count; ++i, cursor.Next()) {
    uint8_t* const place = static_cast<uint8_t*>(data) + cursor.offset() * kBytes;
    uint8_t* const in_row = packed + i * kBytes;
    constexpr bool kGathers = kDirection == Direction::kFlatten;
    std::memcpy(kGathers ? in_row : place, kGathers ? place : in_row, kBytes);
  }
}

using MoveFunction = void (*)(RowMajorCursor&, void*, uint8_t*, size_t);

template <Direction kDirection>
MoveFunction MoveOf(size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return &Move<1, kDirection>;
    case 2:
      return &Move<2, kDirection>;
    case 4:
      return &Move<4, kDirection>;
    case 8:
      return &Move<8, kDirection>;
    default:
      return &Move<kElementBytesMax, kDirection>;
  }
}

absl::Status FlattenView(const TensorView& view, uint8_t* flat, DType flat_dtype, double factor) {
  const DType dtype = view.dtype();
  if (view.dense()) return CastScaled(flat_dtype, flat, dtype, view.data(), view.elements(), factor);
  const MoveFunction gather = MoveOf<Direction::kFlatten>(SizeOf(dtype));
  RowMajorCursor cursor(view);
  uint8_t staging[kStagingBytes];
  const size_t step = kStagingBytes / SizeOf(dtype);
  for (size_t done = 0; done < view.elements(); done += step) {
    const size_t count = std::min(step, view.elements() - done);
    gather(cursor, view.data(), staging, count);
    LOCKSTEP_RETURN_IF_ERROR(CastScaled(flat_dtype, At(flat, done, flat_dtype), dtype, staging, count, factor));
  }
  return absl::OkStatus();
}

absl::Status UnflattenView(const TensorView& view, const uint8_t* flat, DType flat_dtype, double factor) {
  const DType dtype = view.dtype();
  if (view.dense()) return CastScaled(dtype, view.data(), flat_dtype, flat, view.elements(), factor);
  const MoveFunction scatter = MoveOf<Direction::kUnflatten>(SizeOf(dtype));
  RowMajorCursor cursor(view);
  uint8_t staging[kStagingBytes];
  const size_t step = kStagingBytes / SizeOf(dtype);
  for (size_t done = 0; done < view.elements(); done += step) {
    const size_t count = std::min(step, view.elements() - done);
    LOCKSTEP_RETURN_IF_ERROR(CastScaled(dtype, staging, flat_dtype, At(flat, done, flat_dtype), count, factor));
    scatter(cursor, view.data(), staging, count);
  }
  return absl::OkStatus();
}

// Before anything is written, so that an error leaves the target whole.
absl::Status CheckViews(absl::Span<const ViewPiece> pieces, Direction direction, DType flat_dtype, double factor) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorView& view = *pieces[i].view;
    absl::Status status = direction == Direction::kFlatten ? CheckCast(flat_dtype, view.dtype(), factor)
                                                           : CheckCast(view.dtype(), flat_dtype, factor);
    if (status.ok() && view.device().kind != DeviceKind::kHost) {
      status = absl::InvalidArgumentError(absl::StrCat(view.ToString(), " is not memory of the host"));
    }
    if (!status.ok()) return Annotate(status, absl::StrCat("piece ", i, " of ", pieces.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FlattenViews(absl::Span<const ViewPiece> pieces, void* flat, DType flat_dtype, double factor) {
  LOCKSTEP_RETURN_IF_ERROR(CheckViews(pieces, Direction::kFlatten, flat_dtype, factor));
  for (const ViewPiece& piece : pieces) {
    if (piece.view->elements() == 0) continue;
    LOCKSTEP_RETURN_IF_ERROR(FlattenView(*piece.view, At(flat, piece.offset, flat_dtype), flat_dtype, factor));
  }
  return absl::OkStatus();
}

absl::Status UnflattenViews(absl::Span<const ViewPiece> pieces, const void* flat, DType flat_dtype, double factor) {
  LOCKSTEP_RETURN_IF_ERROR(CheckViews(pieces, Direction::kUnflatten, flat_dtype, factor));
  for (const ViewPiece& piece : pieces) {
    if (piece.view->elements() == 0) continue;
    LOCKSTEP_RETURN_IF_ERROR(UnflattenView(*piece.view, At(flat, piece.offset, flat_dtype), flat_dtype, factor));
  }
  return absl::OkStatus();
}

}  // namespace kernels
}  // namespace lockstep
