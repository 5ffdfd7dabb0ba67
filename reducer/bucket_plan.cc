#include "reducer/bucket_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace lockstep {
namespace {

constexpr size_t kSlotAlignment = 64;  // bytes

size_t AlignElements(size_t elements, size_t element_bytes) {
  const size_t unit = kSlotAlignment / element_bytes;
  return (elements + unit - 1) / unit * unit;
}

// The bucket that a (dtype, device) is filling.
struct Open {
  BucketPlan::Bucket bucket;
  size_t bytes = 0;  // of gradients, as caps count them
  size_t cap = 0;    // index into the caps
};

}  // namespace

BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, absl::Span<const size_t> caps_bytes) {
  LOCKSTEP_CHECK(!caps_bytes.empty());
  std::vector<BucketPlan::Bucket> buckets;
  std::map<std::tuple<DType, DeviceKind, int>, Open> open;
  for (size_t left = parameters.size(); left > 0; --left) {
    const size_t index = left - 1;
    const Parameter& parameter = parameters[index];
    Open& filling = open[std::make_tuple(parameter.dtype, parameter.device.kind, parameter.device.index)];
    BucketPlan::Bucket& bucket = filling.bucket;
    bucket.dtype = parameter.dtype;
    bucket.device = parameter.device;
    const size_t elements = parameter.elements();
    bucket.slots.push_back({index, bucket.elements, elements});
    bucket.elements = AlignElements(bucket.elements + elements, SizeOf(parameter.dtype));
    filling.bytes += parameter.bytes();
    if (filling.bytes < caps_bytes[filling.cap]) continue;
    buckets.push_back(std::move(bucket));
    bucket = BucketPlan::Bucket();
    filling.bytes = 0;
    if (filling.cap + 1 < caps_bytes.size()) ++filling.cap;
  }
  for (auto& [key, filling] : open) {
    if (!filling.bucket.slots.empty()) buckets.push_back(std::move(filling.bucket));
  }
  // The last slot's gradient is the last to appear: the lower its parameter, the later the bucket.
  std::sort(buckets.begin(), buckets.end(), [](const BucketPlan::Bucket& a, const BucketPlan::Bucket& b) {
    return a.slots.back().parameter > b.slots.back().parameter;
  });

  BucketPlan plan;
  plan.buckets = std::move(buckets);
  plan.locations.resize(parameters.size());
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    BucketPlan::Bucket& bucket = plan.buckets[b];
    bucket.mark = bucket.elements;
    bucket.elements += 1;
    for (size_t s = 0; s < bucket.slots.size(); ++s) plan.locations[bucket.slots[s].parameter] = {b, s};
  }
  return plan;
}

std::string ToString(const BucketPlan& plan) {
  std::string text;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketPlan::Bucket& bucket = plan.buckets[b];
    absl::StrAppend(&text, "bucket ", b, ": ", bucket.bytes(), " B ", Name(bucket.dtype), " on ", Name(bucket.device),
                    ", parameters");
    for (const BucketPlan::Slot& slot : bucket.slots) absl::StrAppend(&text, " ", slot.parameter);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace lockstep
