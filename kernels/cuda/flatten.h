// Gathering many tensors on a GPU into one flat array and spreading it out again, with conversion and a factor on the
// way: gradients into a bucket, and a bucket into gradients.
//
// Every element is converted as by CastScaled (kernels/cpu/cast.h), with the bits of kernels/cpu/flatten.h. Functions
// enqueue and return: what they read and write stays borrowed until the stream has come past it, but views, pieces and
// entries only until they return. All dense pieces of one dtype that fit the arguments of a launch (about 1,000, or 120
// of them where drivers are old) are one launch; pieces with gaps between their elements are another, and several times
// slower.
//
// The views must be on the stream's device, and the flat array, on it as well, hold every piece's range. Pieces may be
// empty. Thread-safe: nothing is kept between calls.
//
// REQUIRES that each element of a target is written at most once, and that what is written overlaps nothing that is
// read. A dense view may be exactly its own range of the flat array if their elements have one size. This is not
// checked: comparing thousands of pieces would cost more than moving them.
//
// INVALID_ARGUMENT, before anything is enqueued: what CheckCast (kernels/cpu/cast.h) refuses; a view elsewhere; a flat
// array not aligned to its element; a stream that is not CUDA's. UNAVAILABLE in a build without CUDA. INTERNAL with
// CUDA's words when a launch fails; earlier launches of the call may have been enqueued then.

#ifndef KERNELS_CUDA_FLATTEN_H_
#define KERNELS_CUDA_FLATTEN_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// Pieces, entries and the gate are those of kernels/bucket_kernels.h. A dense view is taken as one block in the order
// of its memory, any other in row-major order.

// flat[offset + i] = flat_dtype(view[i] * factor) for every piece, and the entries. A view that is its range of the
// flat array is left out where the factor is 1.
absl::Status FlattenViews(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                          DType flat_dtype, double factor, Stream& stream);

// view[i] = dtype(flat[offset + i] * factor) for every piece that the gate, if any, lets pass. A view may be its range
// of the flat array, which is then scaled in place.
absl::Status UnflattenViews(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                            const BucketGate* gate, Stream& stream);

namespace internal {

absl::Status FlattenViews(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                          DType flat_dtype, double factor, Executor& executor);
absl::Status UnflattenViews(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                            const BucketGate* gate, Executor& executor);
// BucketKernels::Hash.
absl::Status Hash(const void* data, size_t bytes, uint64_t first_word, uint64_t* sum, Executor& executor);

}  // namespace internal

// Loads every kernel onto the device of that index. Call it before the first step: otherwise CUDA loads a kernel at its
// first launch, which may wait for running work, and deadlocks if that work waits for the launch. Thread-safe; cheap if
// everything is loaded. UNAVAILABLE without such a device or without CUDA.
absl::Status Preload(int device);

}  // namespace cuda

// The same as an interface, for streams of CUDA devices (base/device/cuda/cuda_device.h). Never destroyed.
const BucketKernels* CudaBucketKernels();

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_FLATTEN_H_
