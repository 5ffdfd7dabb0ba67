// Which parameter's gradient goes into which bucket, and where in it. Pure, and equal on every rank for equal tables.
//
// Gradients appear roughly in the reverse order of definition, so parameters are taken in that order. A bucket holds one dtype on
// one device. It is full when the bytes in it reach its cap: a cap is a lower bound, a gradient is never split, and a cap of zero
// gives every gradient a bucket of its own. The caps of a list are used up one by one per (dtype, device), the last one repeats.
// Buckets are numbered in the order in which their last gradient is expected, which is the order of launch.

#ifndef REDUCER_BUCKET_PLAN_H_
#define REDUCER_BUCKET_PLAN_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "reducer/parameter.h"

namespace lockstep {

struct BucketPlan {
  // A gradient's place. Offsets are multiples of 64 bytes, so that no gradient's odd size misaligns the next.
  struct Slot {
    size_t parameter = 0;
    size_t offset = 0;  // in elements
    size_t elements = 0;
  };

  struct Bucket {
    DType dtype = DType::kF32;
    DeviceId device;
    std::vector<Slot> slots;
    // The flat buffer: slots with the gaps between them, then the mark. All of it is reduced; gaps are zero.
    size_t elements = 0;
    // The mark is one element behind the data, zero unless a rank could not fill the bucket (see Reducer).
    size_t mark = 0;  // its offset, in elements

    size_t bytes() const { return elements * SizeOf(dtype); }
  };

  struct Location {
    size_t bucket = 0;
    size_t slot = 0;
  };

  std::vector<Bucket> buckets;
  std::vector<Location> locations;  // by parameter
};

// `caps_bytes` is not empty.
BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, absl::Span<const size_t> caps_bytes);

// One line per bucket.
std::string ToString(const BucketPlan& plan);

}  // namespace lockstep

#endif  // REDUCER_BUCKET_PLAN_H_
