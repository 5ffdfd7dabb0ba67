// Which parameter's gradient goes into which bucket, and where in it. Pure, and equal on every rank for equal tables.
//
// Gradients appear roughly in the reverse order of definition, so parameters are taken in that order, but for those that are to be
// ignored. A bucket holds one dtype on one device. It is full when the bytes in it reach its cap: a cap is a lower bound, a gradient
// is never split, and a cap of zero gives every gradient a bucket of its own. The caps of a list are used up one by one per (dtype,
// device), the last one repeats; beginning either with the first gradients, so that communication begins early, or with the last,
// so that little of it is left when the backward pass ends. Buckets are numbered in the order in which their last gradient is
// expected, which is the order of launch.

#ifndef REDUCER_BUCKET_PLAN_H_
#define REDUCER_BUCKET_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "reducer/parameter.h"

namespace lockstep {

struct BucketPlan {
  // A gradient's place. Offsets are multiples of 256 bytes, so that no gradient's odd size misaligns the next.
  static constexpr size_t kAlignment = 256;
  struct Slot {
    size_t parameter = 0;
    size_t offset = 0;  // in elements
    size_t elements = 0;
  };

  struct Bucket {
    DType dtype = DType::kF32;
    DeviceId device;
    std::vector<Slot> slots;
    // The flat buffer: slots with the gaps between them, then the mark. All of it is reduced; what is in the gaps means nothing.
    size_t elements = 0;
    // The mark is one element behind the data, zero unless a rank could not fill the bucket (see Reducer).
    size_t mark = 0;  // its offset, in elements

    size_t bytes() const { return elements * SizeOf(dtype); }
  };

  struct Location {
    static constexpr size_t kIgnored = SIZE_MAX;

    size_t bucket = kIgnored;
    size_t slot = 0;
  };

  std::vector<Bucket> buckets;
  std::vector<Location> locations;  // by parameter
};

enum class CapsFrom { kFirst, kLast };  // the gradients with which the caps' list begins

// `caps_bytes` is not empty.
BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, absl::Span<const size_t> caps_bytes,
                       CapsFrom from = CapsFrom::kFirst);

// One line per bucket.
std::string ToString(const BucketPlan& plan);

}  // namespace lockstep

#endif  // REDUCER_BUCKET_PLAN_H_
