#include "kernels/cpu/flatten.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"

namespace lockstep::kernels {
namespace {

// Between the strided side and the conversion: fits the first-level cache beside what it is converted to.
constexpr size_t kStagingBytes = 4096;
constexpr size_t kElementBytesMax = 16;  // complex128

// Walks a view's elements in row-major order: a position per dimension, as an odometer.
class RowMajorCursor {
 public:
  RowMajorCursor(const TensorView& view, size_t first)
      : shape_(view.shape()), strides_(view.strides()), index_(view.shape().size(), 0) {
    for (size_t d = shape_.size(); d-- > 0 && first > 0;) {
      index_[d] = static_cast<int64_t>(first % shape_[d]);
      first /= shape_[d];
      offset_ += strides_[d] * index_[d];
    }
  }

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
    if constexpr (kDirection == Direction::kFlatten) {
      std::memcpy(in_row, place, kBytes);
    } else {
      std::memcpy(place, in_row, kBytes);
    }
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

// Between elements of a view and their range of the flat array, which is only read when unflattened.
template <Direction kDirection>
absl::Status MoveView(const TensorView& view, size_t first, size_t count, uint8_t* flat, DType flat_dtype,
                      double factor) {
  constexpr bool kGathers = kDirection == Direction::kFlatten;
  const DType dtype = view.dtype();
  const auto cast = [&](void* own, uint8_t* in_flat, size_t elements) {
    return kGathers ? CastScaled(flat_dtype, in_flat, dtype, own, elements, factor)
                    : CastScaled(dtype, own, flat_dtype, in_flat, elements, factor);
  };
  if (view.dense()) return cast(static_cast<uint8_t*>(view.data()) + first * SizeOf(dtype), flat, count);
  const MoveFunction move = MoveOf<kDirection>(SizeOf(dtype));
  RowMajorCursor cursor(view, first);
  uint8_t staging[kStagingBytes];
  const size_t step = kStagingBytes / SizeOf(dtype);
  for (size_t done = 0; done < count; done += step) {
    const size_t elements = std::min(step, count - done);
    if (kGathers) move(cursor, view.data(), staging, elements);
    LOCKSTEP_RETURN_IF_ERROR(cast(staging, flat + done * SizeOf(flat_dtype), elements));
    if (!kGathers) move(cursor, view.data(), staging, elements);
  }
  return absl::OkStatus();
}

template <Direction kDirection>
absl::Status MoveViews(absl::Span<const ViewPiece> pieces, void* flat, DType flat_dtype, double factor) {
  // Everything is checked before anything is written, so that an error leaves the target whole.
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorView& view = *pieces[i].view;
    absl::Status status = kDirection == Direction::kFlatten ? CheckCast(flat_dtype, view.dtype(), factor)
                                                            : CheckCast(view.dtype(), flat_dtype, factor);
    if (status.ok() && view.device().kind != DeviceKind::kHost) {
      status = absl::InvalidArgumentError(absl::StrCat(view.ToString(), " is not memory of the host"));
    }
    if (!status.ok()) return Annotate(status, absl::StrCat("piece ", i, " of ", pieces.size()));
  }
  for (const ViewPiece& piece : pieces) {
    if (piece.view->elements() == 0) continue;
    uint8_t* const range = static_cast<uint8_t*>(flat) + piece.offset * SizeOf(flat_dtype);
    LOCKSTEP_RETURN_IF_ERROR(MoveView<kDirection>(*piece.view, 0, piece.view->elements(), range, flat_dtype, factor));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FlattenViews(absl::Span<const ViewPiece> pieces, void* flat, DType flat_dtype, double factor) {
  return MoveViews<Direction::kFlatten>(pieces, flat, flat_dtype, factor);
}

absl::Status UnflattenViews(absl::Span<const ViewPiece> pieces, const void* flat, DType flat_dtype, double factor) {
  return MoveViews<Direction::kUnflatten>(pieces, const_cast<void*>(flat), flat_dtype, factor);
}

void ReadElements(const TensorView& view, size_t first, size_t count, void* flat, DType flat_dtype, double factor) {
  const absl::Status read =
      MoveView<Direction::kFlatten>(view, first, count, static_cast<uint8_t*>(flat), flat_dtype, factor);
  LOCKSTEP_CHECK(read.ok()) << read.message();
}

void WriteElements(const TensorView& view, size_t first, size_t count, const void* flat, DType flat_dtype,
                   double factor) {
  auto* const source = static_cast<uint8_t*>(const_cast<void*>(flat));
  const absl::Status written = MoveView<Direction::kUnflatten>(view, first, count, source, flat_dtype, factor);
  LOCKSTEP_CHECK(written.ok()) << written.message();
}

void GatherBlocks(const Block* blocks, size_t count, void* flat) {
  ActiveTable().gather(blocks, count, static_cast<char*>(flat));
}

void ScatterBlocks(const Block* blocks, size_t count, const void* flat) {
  ActiveTable().scatter(blocks, count, static_cast<const char*>(flat));
}

}  // namespace lockstep::kernels
