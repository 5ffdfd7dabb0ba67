// Which parameter's gradient goes into which bucket, and where in it. Pure, and equal on every rank for equal arguments.
//
// Gradients appear roughly in the reverse order of definition, so parameters are taken in that order, or in the order in which they
// were seen to appear; those that are to be ignored are not taken. A bucket holds one dtype on one device. It is full when the bytes
// of the gradients in it reach its cap: a cap is a lower bound, a gradient is never split, and a cap of zero gives every gradient a
// bucket of its own. The caps of a list are used up one by one per (dtype, device), the last one repeats; beginning either with the
// first gradients, so that communication begins early, or with the last, so that little of it is left when the backward pass ends.
// Buckets are numbered in the order in which their last gradient is expected, which is the order of launch.
//
// Delayed parameters have buckets of their own, launched directly after that of their trigger. A sparse parameter has one alone,
// with nothing in it but a status trailer: its gradient travels as rows.

#ifndef REDUCER_PLAN_BUCKET_PLAN_H_
#define REDUCER_PLAN_BUCKET_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

enum class CapsFrom { kFirst, kLast };  // the gradients with which the caps' list begins

// Beside the table, what decides a plan.
struct PlanRules {
  std::vector<size_t> caps_bytes;  // not empty
  CapsFrom caps_from = CapsFrom::kFirst;
  // What real floats are sent as: a bucket's memory is of this dtype. Complex numbers are sent as they are.
  absl::optional<DType> wire = absl::nullopt;
  std::vector<size_t> delayed = {};  // parameters
  size_t delayed_trigger = 0;        // one that is not delayed, where there are any
};

// INVALID_ARGUMENT for rules that this table cannot have: no caps, a wire dtype that is no 16-bit float, delayed parameters out of
// range, named twice, ignored or sparse, a trigger that is one of them or ignored.
absl::Status CheckRules(const PlanRules& rules, absl::Span<const Parameter> parameters);

// The parameters of each bucket in the order of launch, but for delayed ones.
using BucketGroups = std::vector<std::vector<size_t>>;

struct BucketPlan {
  // A gradient's place. Offsets are multiples of 256 bytes, so that no gradient's odd size misaligns the next.
  static constexpr size_t kAlignment = 256;
  struct Slot {
    size_t parameter = 0;
    size_t offset = 0;  // in elements
    size_t elements = 0;
  };

  struct Bucket {
    DType dtype = DType::kF32;  // of its gradients
    DType wire = DType::kF32;   // of its memory
    DeviceId device;
    std::vector<Slot> slots;
    // The flat buffer: slots with the gaps between them, then the status trailer (plan/status_trailer.h). All of it is reduced; what is in
    // the gaps means nothing.
    size_t elements = 0;
    size_t trailer = 0;  // its offset, in elements
    bool delayed = false;
    bool sparse = false;

    size_t bytes() const { return elements * SizeOf(wire); }
  };

  struct Location {
    static constexpr size_t kIgnored = SIZE_MAX;

    size_t bucket = kIgnored;
    size_t slot = 0;
  };

  std::vector<Bucket> buckets;
  std::vector<Location> locations;  // by parameter
};

// The order in which gradients are expected as long as nobody has seen any: reduced parameters, not delayed, the last one first.
std::vector<size_t> ExpectedOrder(absl::Span<const Parameter> parameters, const PlanRules& rules);

// `order` is a permutation of what ExpectedOrder has.
BucketGroups GroupByCaps(absl::Span<const Parameter> parameters, const PlanRules& rules,
                         absl::Span<const size_t> order);

// INVALID_ARGUMENT unless every reduced, not delayed parameter is in exactly one group, and groups are of one dtype and device.
absl::Status CheckGroups(absl::Span<const Parameter> parameters, const PlanRules& rules, const BucketGroups& groups);

// `groups` are as CheckGroups wants them.
BucketPlan LayOut(absl::Span<const Parameter> parameters, const PlanRules& rules, const BucketGroups& groups);

// All of the above, in the expected order.
BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, const PlanRules& rules);

BucketGroups GroupsOf(const BucketPlan& plan);

// Bytes that any plan for this table and these rules fits in, whatever its order.
size_t PlanBytesMax(absl::Span<const Parameter> parameters, const PlanRules& rules);

// One line per bucket.
std::string ToString(const BucketPlan& plan);

}  // namespace lockstep

#endif  // REDUCER_PLAN_BUCKET_PLAN_H_
