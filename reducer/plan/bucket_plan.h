// Decides which parameter's gradient goes into which bucket, and where in it. Pure: equal on every rank for equal
// arguments.
//
// Gradients appear roughly in the reverse order of definition. So parameters are taken in that order, or in an order
// that was seen. Ignored parameters are left out. A bucket holds one dtype on one device. It is full when the bytes of
// its gradients reach its cap: a cap is a lower bound, a gradient is never split, and a cap of zero gives every
// gradient a bucket of its own. Caps are used one by one per (dtype, device); the last one repeats. They begin with the
// first gradients, so that communication begins early, or with the last, so that little of it is left when the backward
// pass ends. Buckets are numbered in the order in which their last gradient is expected. That is the order of launch.
//
// Delayed parameters have buckets of their own, launched directly after the bucket of their trigger. A sparse parameter
// has a bucket for itself that holds only a status trailer: its gradient travels as rows.

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
#include "reducer/plan/status_trailer.h"

namespace lockstep {

enum class CapsFrom { kFirst, kLast };  // the gradients with which the caps' list begins

// Beside the table, what decides a plan.
struct PlanRules {
  std::vector<size_t> caps_bytes;  // not empty
  CapsFrom caps_from = CapsFrom::kFirst;
  // The dtype in which real floats are sent, and of the bucket's memory. Complex numbers are sent as they are.
  absl::optional<DType> wire = absl::nullopt;
  std::vector<size_t> delayed = {};  // parameters
  size_t delayed_trigger = 0;        // not delayed; unused if nothing is delayed
  bool hashes_replicas = false;      // the last bucket's status trailer has a hash
};

// INVALID_ARGUMENT: there are no caps; the wire dtype is no 16-bit float; a delayed parameter is out of range, named
// twice, ignored or sparse; the trigger is delayed or ignored.
absl::Status CheckRules(const PlanRules& rules, absl::Span<const Parameter> parameters);

// The parameters of each bucket in the order of launch, without delayed ones.
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
    // The flat buffer: slots with gaps between them, then the status trailer (plan/status_trailer.h). All of it is
    // reduced; gaps hold nothing of use.
    size_t elements = 0;
    size_t trailer = 0;  // its offset, in elements
    bool delayed = false;
    bool sparse = false;
    bool hashed = false;  // the trailer ends with a hash

    size_t trailer_elements() const {
      return StatusTrailer::Elements(slots.size()) + (hashed ? StatusTrailer::kHashEntries : 0);
    }
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

// The order in which gradients are expected before any was seen: reduced parameters that are not delayed, the last one
// first.
std::vector<size_t> ExpectedOrder(absl::Span<const Parameter> parameters, const PlanRules& rules);

// REQUIRES that `order` is a permutation of ExpectedOrder.
BucketGroups GroupByCaps(absl::Span<const Parameter> parameters, const PlanRules& rules,
                         absl::Span<const size_t> order);

// INVALID_ARGUMENT unless every reduced, not delayed parameter is in exactly one group, and groups are of one dtype and device.
absl::Status CheckGroups(absl::Span<const Parameter> parameters, const PlanRules& rules, const BucketGroups& groups);

// REQUIRES that CheckGroups accepts `groups`.
BucketPlan LayOut(absl::Span<const Parameter> parameters, const PlanRules& rules, const BucketGroups& groups);

// The plan for the expected order.
BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, const PlanRules& rules);

BucketGroups GroupsOf(const BucketPlan& plan);

// Bytes that suffice for any plan of this table and these rules, whatever its order.
size_t PlanBytesMax(absl::Span<const Parameter> parameters, const PlanRules& rules);

// One line per bucket.
std::string ToString(const BucketPlan& plan);

// Bucket plans as text: to keep beside a checkpoint, so that a restarted job sums in the same order, and to send to
// other ranks.
//
//   lockstep-bucket-plan 1
//   parameters <hash of the table, 16 hexadecimal digits>
//   bucket 7 6 5           parameters by index; one line a bucket, in the order of launch; delayed ones are not listed
//   bucket 4 3
std::string PlanToText(absl::Span<const Parameter> parameters, const BucketGroups& groups);

// INVALID_ARGUMENT, which says where: the text is no plan, is of another table, or has groups that CheckGroups refuses.
absl::StatusOr<BucketGroups> PlanFromText(absl::Span<const Parameter> parameters, const PlanRules& rules,
                                          const std::string& text);

}  // namespace lockstep

#endif  // REDUCER_PLAN_BUCKET_PLAN_H_
