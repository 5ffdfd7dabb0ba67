// BucketKernels: copies gradients and the status trailer into a bucket's memory on a device, and averages out of it, in
// the order of a stream; and hashes memory there. One interface for every device, so that its users can be tested without one.
//
// Calls return once the work is issued. Views are borrowed until then, memory until the work is done. Elements are
// converted as by kernels/cpu/flatten.h, to the same bits. Thread-safe.

#ifndef KERNELS_BUCKET_KERNELS_H_
#define KERNELS_BUCKET_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/types/dtype.h"

namespace lockstep::kernels {

// A range of a flat array, in elements, and the tensor that belongs there.
struct BucketPiece {
  const TensorView* view = nullptr;  // null, to be gathered: zeros
  size_t offset = 0;
  size_t count = 0;
  size_t entry = 0;  // of the gate's trailer, to be spread
};

// flat[index] = value; of a complex array its real part, the other one 0.
struct BucketEntry {
  size_t index = 0;
  float value = 0;
};

// Decides on the device, by the bucket's trailer, which averages are written. The stream reads the trailer when it
// reaches the call. An entry counts ranks; a count above `count_max` is taken as `count_max`.
struct BucketGate {
  const void* trailer = nullptr;
  DType dtype = DType::kF32;
  int count_max = 0;
  size_t closed_by = 0;         // the entry that must be zero, or nothing is written; a piece's own entry must not be
  bool divide_by_live = false;  // the factor is multiplied by ranks / max(1, ranks - entry[joined])
  size_t joined = 0;
  int ranks = 1;
};

class BucketKernels {
 public:
  virtual ~BucketKernels() = default;
  BucketKernels(const BucketKernels&) = delete;
  BucketKernels& operator=(const BucketKernels&) = delete;

  // flat[offset + i] = flat_dtype(view[i] * factor), then the entries, which lie outside all pieces. INVALID_ARGUMENT for dtypes that
  // do not go together.
  virtual absl::Status Gather(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                              DType flat_dtype, double factor, Stream& stream) const = 0;

  // view[i] = view_dtype(flat[offset + i] * factor), where the gate is open. A view may be its own range of the flat array.
  virtual absl::Status Spread(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                              const BucketGate& gate, Stream& stream) const = 0;

  // Adds the hash of `bytes` bytes at `data` to *sum: HashWord (kernels/hash_word.h) of its words of 8 bytes, in little-endian order, of
  // which the first has the number `first_word`. The last one is filled up with zeros. Both are memory of the device.
  virtual absl::Status Hash(const void* data, size_t bytes, uint64_t first_word, uint64_t* sum,
                            Stream& stream) const = 0;

 protected:
  BucketKernels() = default;
};

}  // namespace lockstep::kernels

#endif  // KERNELS_BUCKET_KERNELS_H_
