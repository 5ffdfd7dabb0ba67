// Gathering many small arrays into one flat one and spreading it out again, with conversion and a factor on the way:
// gradients into a bucket, and a bucket into gradients.
//
// Every element is converted as by CastScaled (kernels/cpu/cast.h), with the same rules for dtypes and factor; on an
// error nothing is written. The flat array must hold every piece's range. The flat array and the pieces share no memory,
// and neither do two targets. Runs on the calling thread.

#ifndef KERNELS_CPU_FLATTEN_H_
#define KERNELS_CPU_FLATTEN_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/types/dtype.h"
#include "kernels/cpu/blocks.h"

namespace lockstep::kernels {

// A piece that is a tensor on the host, of any strides. A dense one (row-major, transposed, channels-last) is taken as
// one block in the order of its memory, so the flat range means the same elements only to views of the same strides.
// Any other is walked element by element in row-major order: several times slower.
struct ViewPiece {
  const TensorView* view = nullptr;  // borrowed
  size_t offset = 0;                 // in the flat array, in elements
};

// flat[offset + i] = flat_dtype(view[i] * factor) for every piece. INVALID_ARGUMENT too for a view that is not on the host.
absl::Status FlattenViews(absl::Span<const ViewPiece> pieces, void* flat, DType flat_dtype, double factor);

// view[i] = dtype(flat[offset + i] * factor) for every piece, with the same errors.
absl::Status UnflattenViews(absl::Span<const ViewPiece> pieces, const void* flat, DType flat_dtype, double factor);

// Of a single view's elements the `count` from `first` on, in the same order. REQUIRES a view on the host that has them, and a cast that
// CheckCast accepts.
void ReadElements(const TensorView& view, size_t first, size_t count, void* flat, DType flat_dtype, double factor);
void WriteElements(const TensorView& view, size_t first, size_t count, const void* flat, DType flat_dtype,
                   double factor);

// flat[blocks[i].begin - blocks[0].begin + k] = blocks[i].data[k], and back, of `count` blocks as they are, which are often short.
// REQUIRES  blocks[count].begin, where the last one ends, is there to read
void GatherBlocks(const Block* blocks, size_t count, void* flat);
void ScatterBlocks(const Block* blocks, size_t count, const void* flat);

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_FLATTEN_H_
