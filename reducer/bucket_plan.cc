#include "reducer/bucket_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace lockstep {
namespace {

size_t AlignElements(size_t elements, size_t element_bytes) {
  const size_t unit = BucketPlan::kAlignment / element_bytes;
  return (elements + unit - 1) / unit * unit;
}

// The parameters of a bucket, by their places in the order in which gradients are expected.
using Group = std::vector<size_t>;

// What a (dtype, device) is filling.
struct Open {
  Group group;
  size_t bytes = 0;  // of gradients, as caps count them
  size_t cap = 0;    // index into the caps
};

// Cuts `order` into groups of one dtype and device, from its beginning or from its end. Places within a group ascend.
std::vector<Group> Cut(absl::Span<const Parameter> parameters, absl::Span<const size_t> order,
                       absl::Span<const size_t> caps_bytes, CapsFrom from) {
  std::vector<Group> groups;
  std::map<std::tuple<DType, DeviceKind, int>, Open> open;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t place = from == CapsFrom::kFirst ? i : order.size() - 1 - i;
    const Parameter& parameter = parameters[order[place]];
    Open& filling = open[std::make_tuple(parameter.dtype, parameter.device.kind, parameter.device.index)];
    filling.group.push_back(place);
    filling.bytes += parameter.bytes();
    if (filling.bytes < caps_bytes[filling.cap]) continue;
    groups.push_back(std::exchange(filling.group, {}));
    filling.bytes = 0;
    if (filling.cap + 1 < caps_bytes.size()) ++filling.cap;
  }
  for (auto& [key, filling] : open) {
    if (!filling.group.empty()) groups.push_back(std::move(filling.group));
  }
  for (Group& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

}  // namespace

BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, absl::Span<const size_t> caps_bytes, CapsFrom from) {
  LOCKSTEP_CHECK(!caps_bytes.empty());
  std::vector<size_t> order;
  for (size_t left = parameters.size(); left > 0; --left) {
    if (!parameters[left - 1].ignored) order.push_back(left - 1);
  }
  std::vector<Group> groups = Cut(parameters, order, caps_bytes, from);
  std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.back() < b.back(); });

  BucketPlan plan;
  plan.locations.resize(parameters.size());
  for (const Group& group : groups) {
    BucketPlan::Bucket bucket;
    bucket.dtype = parameters[order[group.front()]].dtype;
    bucket.device = parameters[order[group.front()]].device;
    for (const size_t place : group) {
      const size_t index = order[place];
      const size_t elements = parameters[index].elements();
      plan.locations[index] = {plan.buckets.size(), bucket.slots.size()};
      bucket.slots.push_back({index, bucket.elements, elements});
      bucket.elements = AlignElements(bucket.elements + elements, SizeOf(bucket.dtype));
    }
    bucket.mark = bucket.elements;
    bucket.elements += 1;
    plan.buckets.push_back(std::move(bucket));
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
