// Gathering many tensors on a GPU into one flat array and spreading it out again, with conversion and a factor on the way: gradients
// into a bucket, and a bucket into gradients.
//
// Every element is converted as by CastScaled (cast.h), with the bits of the CPU's kernels/cpu/flatten.h. Functions enqueue and
// return: what they read and write stays borrowed until the stream has come past it, but views, pieces and entries only until they
// return. All dense pieces of one dtype that fit the arguments of a launch (about 1,000, or 120 of them where drivers are old) are one
// launch; pieces with gaps between their elements are another, and several times slower.
//
// The views must be on the stream's device, and the flat array, on it as well, hold every piece's range. Pieces may be empty. Each
// element of the target is written at most once. Thread-safe: nothing is kept between calls.
//
// INVALID_ARGUMENT, before anything is enqueued: what CheckCast (kernels/cpu/cast.h) refuses; a view elsewhere; a flat array not
// aligned to its element; a stream that is not CUDA's. UNAVAILABLE in a build without CUDA. INTERNAL with CUDA's words when a launch
// fails; earlier launches of the call may have been enqueued then.

#ifndef KERNELS_CUDA_FLATTEN_H_
#define KERNELS_CUDA_FLATTEN_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/tensor_view.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// A dense view is taken as one block in the order of its memory, any other in row-major order.
struct ViewPiece {
  const TensorView* view = nullptr;  // borrowed; null when flattening: `zeros` zero elements
  size_t offset = 0;                 // in the flat array, in elements of its dtype
  size_t zeros = 0;
  size_t entry = 0;  // when unflattening with a gate: the tail's element that says whether the piece is written
};

// flat[index] = value, in float and complex arrays; a complex element's imaginary part becomes 0.
struct FlatValue {
  size_t index = 0;
  float value = 0;
};

// What a bucket's tail (reducer/bucket_tail.h) says, once it is reduced, decides on the device what is written. Nothing is, if
// tail[closed_by] is not zero; a piece is not, if tail[piece.entry] is zero. With divide_by_live the factor becomes
// factor * ranks / max(1, ranks - n), n being tail[joined] rounded to a whole number, at least 1 and at most count_max unless it is 0.
struct UnflattenGate {
  const void* tail = nullptr;  // on the device, read when the stream is there
  DType dtype = DType::kF32;   // a float, or complex: then the real parts count
  size_t closed_by = 0;
  size_t joined = 0;
  int ranks = 1;
  int count_max = 1 << 24;      // BucketTail::CountMax
  bool divide_by_live = false;  // INVALID_ARGUMENT on pieces that cannot be scaled
};

// flat[offset + i] = flat_dtype(view[i] * factor) for every piece, and the values. A view that is its range of the flat array is
// left out where the factor is 1.
absl::Status FlattenViews(absl::Span<const ViewPiece> pieces, absl::Span<const FlatValue> values, void* flat,
                          DType flat_dtype, double factor, Stream& stream);

// view[i] = dtype(flat[offset + i] * factor) for every piece that the gate, if there is one, lets pass. A view may be its range of the
// flat array, which is then scaled in place.
absl::Status UnflattenViews(absl::Span<const ViewPiece> pieces, const void* flat, DType flat_dtype, double factor,
                            const UnflattenGate* gate, Stream& stream);

namespace internal {

absl::Status FlattenViews(absl::Span<const ViewPiece> pieces, absl::Span<const FlatValue> values, void* flat,
                          DType flat_dtype, double factor, Executor& executor);
absl::Status UnflattenViews(absl::Span<const ViewPiece> pieces, const void* flat, DType flat_dtype, double factor,
                            const UnflattenGate* gate, Executor& executor);

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_FLATTEN_H_
