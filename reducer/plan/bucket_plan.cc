#include "reducer/plan/bucket_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status.h"
#include "reducer/plan/status_trailer.h"
#include "xxhash.h"

namespace lockstep {
namespace {

size_t AlignElements(size_t elements, size_t element_bytes) {
  const size_t unit = BucketPlan::kAlignment / element_bytes;
  return (elements + unit - 1) / unit * unit;
}

DType WireOf(DType dtype, const PlanRules& rules) { return IsFloat(dtype) ? rules.wire.value_or(dtype) : dtype; }

// What shares a bucket.
using Key = std::tuple<DType, DeviceKind, int>;
Key KeyOf(const Parameter& parameter) {
  return std::make_tuple(parameter.dtype, parameter.device.kind, parameter.device.index);
}

// The parameters of a bucket, by their places in the order in which gradients are expected.
using Places = std::vector<size_t>;

// What a (dtype, device) is filling.
struct Open {
  Places places;
  size_t bytes = 0;  // of gradients, as caps count them
  size_t cap = 0;    // index into the caps
};

// Cuts `order` from its beginning or from its end. Places within a bucket ascend.
std::vector<Places> Cut(absl::Span<const Parameter> parameters, absl::Span<const size_t> order,
                        const PlanRules& rules) {
  std::vector<Places> cut;
  std::map<Key, Open> open;
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t place = rules.caps_from == CapsFrom::kFirst ? i : order.size() - 1 - i;
    const Parameter& parameter = parameters[order[place]];
    if (parameter.sparse) {
      cut.push_back({place});
      continue;
    }
    Open& filling = open[KeyOf(parameter)];
    filling.places.push_back(place);
    filling.bytes += parameter.bytes();
    if (filling.bytes < rules.caps_bytes[filling.cap]) continue;
    cut.push_back(std::exchange(filling.places, {}));
    filling.bytes = 0;
    if (filling.cap + 1 < rules.caps_bytes.size()) ++filling.cap;
  }
  for (auto& [key, filling] : open) {
    if (!filling.places.empty()) cut.push_back(std::move(filling.places));
  }
  for (Places& places : cut) std::sort(places.begin(), places.end());
  std::sort(cut.begin(), cut.end(), [](const Places& a, const Places& b) { return a.back() < b.back(); });
  return cut;
}

void Append(BucketPlan& plan, absl::Span<const Parameter> parameters, const PlanRules& rules,
            absl::Span<const size_t> group, bool delayed) {
  const Parameter& first = parameters[group.front()];
  BucketPlan::Bucket bucket;
  bucket.dtype = first.dtype;
  bucket.wire = first.sparse ? first.dtype : WireOf(first.dtype, rules);
  bucket.device = first.device;
  bucket.delayed = delayed;
  bucket.sparse = first.sparse;
  // Both in the bucket and in the memory of views of it, whichever has the smaller elements.
  const size_t aligned_bytes = std::min(SizeOf(bucket.dtype), SizeOf(bucket.wire));
  for (const size_t index : group) {
    const size_t elements = bucket.sparse ? 0 : parameters[index].elements();
    plan.locations[index] = {plan.buckets.size(), bucket.slots.size()};
    bucket.slots.push_back({index, bucket.elements, elements});
    bucket.elements = AlignElements(bucket.elements + elements, aligned_bytes);
  }
  bucket.trailer = bucket.elements;
  bucket.elements += StatusTrailer::Elements(bucket.slots.size());
  plan.buckets.push_back(std::move(bucket));
}

// Delayed parameters by dtype and device, each in the order in which they were named.
BucketGroups DelayedGroups(absl::Span<const Parameter> parameters, const PlanRules& rules) {
  std::map<Key, std::vector<size_t>> groups;
  for (const size_t index : rules.delayed) groups[KeyOf(parameters[index])].push_back(index);
  BucketGroups ordered;
  for (auto& [key, group] : groups) ordered.push_back(std::move(group));
  return ordered;
}

}  // namespace

absl::Status CheckRules(const PlanRules& rules, absl::Span<const Parameter> parameters) {
  if (rules.caps_bytes.empty()) return absl::InvalidArgumentError("the list of bucket caps is empty");
  if (rules.wire.has_value() && *rules.wire != DType::kF16 && *rules.wire != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients are compressed to f16 or bf16, not to ", Name(*rules.wire)));
  }
  std::vector<bool> delayed(parameters.size(), false);
  for (const size_t index : rules.delayed) {
    if (index >= parameters.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("delayed parameter ", index, " is out of range: there are ", parameters.size()));
    }
    const std::string name = Describe(index, parameters[index]);
    if (delayed[index]) return absl::InvalidArgumentError(absl::StrCat("delayed ", name, " is named twice"));
    if (parameters[index].ignored) return absl::InvalidArgumentError(absl::StrCat("delayed ", name, " is ignored"));
    if (parameters[index].sparse) return absl::InvalidArgumentError(absl::StrCat("delayed ", name, " is sparse"));
    delayed[index] = true;
  }
  if (rules.delayed.empty()) return absl::OkStatus();
  const size_t trigger = rules.delayed_trigger;
  if (trigger >= parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the trigger of delayed parameters, parameter ", trigger,
                                                   ", is out of range: there are ", parameters.size()));
  }
  if (parameters[trigger].ignored || delayed[trigger]) {
    return absl::InvalidArgumentError(absl::StrCat("the trigger of delayed parameters, ",
                                                   Describe(trigger, parameters[trigger]), ", is itself ",
                                                   delayed[trigger] ? "delayed" : "ignored"));
  }
  return absl::OkStatus();
}

std::vector<size_t> ExpectedOrder(absl::Span<const Parameter> parameters, const PlanRules& rules) {
  std::vector<size_t> order;
  for (size_t index = parameters.size(); index-- > 0;) {
    const bool delayed = std::find(rules.delayed.begin(), rules.delayed.end(), index) != rules.delayed.end();
    if (!parameters[index].ignored && !delayed) order.push_back(index);
  }
  return order;
}

BucketGroups GroupByCaps(absl::Span<const Parameter> parameters, const PlanRules& rules,
                         absl::Span<const size_t> order) {
  LOCKSTEP_CHECK(!rules.caps_bytes.empty());
  BucketGroups groups;
  for (const Places& places : Cut(parameters, order, rules)) {
    groups.emplace_back();
    for (const size_t place : places) groups.back().push_back(order[place]);
  }
  return groups;
}

absl::Status CheckGroups(absl::Span<const Parameter> parameters, const PlanRules& rules, const BucketGroups& groups) {
  std::vector<bool> expected(parameters.size(), false);
  for (const size_t index : ExpectedOrder(parameters, rules)) expected[index] = true;
  for (const std::vector<size_t>& group : groups) {
    if (group.empty()) return absl::InvalidArgumentError("a bucket without parameters");
    for (const size_t index : group) {
      if (index >= parameters.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("parameter ", index, " is out of range: there are ", parameters.size()));
      }
      const std::string name = Describe(index, parameters[index]);
      if (!expected[index]) {
        return absl::InvalidArgumentError(absl::StrCat(name, " is in two buckets, ignored or delayed"));
      }
      expected[index] = false;
      if (KeyOf(parameters[index]) != KeyOf(parameters[group.front()])) {
        return absl::InvalidArgumentError(absl::StrCat(name, " differs in dtype or device from ",
                                                       Describe(group.front(), parameters[group.front()]),
                                                       ", with which it is to share a bucket"));
      }
      if (parameters[index].sparse && group.size() > 1) {
        return absl::InvalidArgumentError(absl::StrCat(name, " is sparse and is to share a bucket"));
      }
    }
  }
  const auto left = std::find(expected.begin(), expected.end(), true);
  if (left != expected.end()) {
    const size_t index = left - expected.begin();
    return absl::InvalidArgumentError(absl::StrCat(Describe(index, parameters[index]), " is in no bucket"));
  }
  return absl::OkStatus();
}

BucketPlan LayOut(absl::Span<const Parameter> parameters, const PlanRules& rules, const BucketGroups& groups) {
  BucketPlan plan;
  plan.locations.resize(parameters.size());
  for (const std::vector<size_t>& group : groups) {
    Append(plan, parameters, rules, group, /*delayed=*/false);
    if (rules.delayed.empty() || std::find(group.begin(), group.end(), rules.delayed_trigger) == group.end()) continue;
    for (const std::vector<size_t>& delayed : DelayedGroups(parameters, rules)) {
      Append(plan, parameters, rules, delayed, /*delayed=*/true);
    }
  }
  if (rules.hashes_replicas && !plan.buckets.empty()) {
    BucketPlan::Bucket& last = plan.buckets.back();
    last.hashed = true;
    last.elements = last.trailer + last.trailer_elements();
  }
  return plan;
}

BucketPlan PlanBuckets(absl::Span<const Parameter> parameters, const PlanRules& rules) {
  return LayOut(parameters, rules, GroupByCaps(parameters, rules, ExpectedOrder(parameters, rules)));
}

BucketGroups GroupsOf(const BucketPlan& plan) {
  BucketGroups groups;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    if (bucket.delayed) continue;
    groups.emplace_back();
    for (const BucketPlan::Slot& slot : bucket.slots) groups.back().push_back(slot.parameter);
  }
  return groups;
}

size_t PlanBytesMax(absl::Span<const Parameter> parameters, const PlanRules& rules) {
  // In the worst case every parameter has a bucket.
  size_t bytes = 0;
  for (const Parameter& parameter : parameters) {
    if (parameter.ignored) continue;
    BucketPlan alone;
    alone.locations.resize(parameters.size());
    const size_t index = &parameter - parameters.data();
    Append(alone, parameters, rules, {index}, /*delayed=*/false);
    bytes += AlignElements(alone.buckets[0].bytes(), 1);
  }
  if (rules.hashes_replicas) bytes += AlignElements(StatusTrailer::kHashEntries * SizeOf(DType::kComplex128), 1);
  return bytes;
}

std::string ToString(const BucketPlan& plan) {
  std::string text;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketPlan::Bucket& bucket = plan.buckets[b];
    absl::StrAppend(&text, "bucket ", b, ": ", bucket.bytes(), " B ", Name(bucket.wire), " on ", Name(bucket.device),
                    bucket.delayed ? ", delayed" : "", bucket.sparse ? ", sparse" : "", ", parameters");
    for (const BucketPlan::Slot& slot : bucket.slots) absl::StrAppend(&text, " ", slot.parameter);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// ---- Plans as text.

namespace {

constexpr absl::string_view kTitle = "lockstep-bucket-plan 1";

std::string TableLine(absl::Span<const Parameter> parameters) {
  const std::string table = Serialize(parameters);
  return absl::StrCat("parameters ", absl::Hex(XXH3_64bits(table.data(), table.size()), absl::kZeroPad16));
}

absl::Status Bad(size_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("bucket plan, line ", line, ": ", what));
}

}  // namespace

std::string PlanToText(absl::Span<const Parameter> parameters, const BucketGroups& groups) {
  std::string text = absl::StrCat(kTitle, "\n", TableLine(parameters), "\n");
  for (const std::vector<size_t>& group : groups) absl::StrAppend(&text, "bucket ", absl::StrJoin(group, " "), "\n");
  return text;
}

absl::StatusOr<BucketGroups> PlanFromText(absl::Span<const Parameter> parameters, const PlanRules& rules,
                                          const std::string& text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (lines.empty() || lines[0] != kTitle) return Bad(1, absl::StrCat("not \"", kTitle, "\""));
  if (lines.size() < 2 || lines[1] != TableLine(parameters)) {
    return Bad(2, "it was made for another table of parameters");
  }
  BucketGroups groups;
  for (size_t i = 2; i < lines.size(); ++i) {
    absl::string_view rest = lines[i];
    if (!absl::ConsumePrefix(&rest, "bucket ")) return Bad(i + 1, "not a bucket");
    groups.emplace_back();
    for (const absl::string_view word : absl::StrSplit(rest, ' ', absl::SkipEmpty())) {
      uint64_t index = 0;
      if (!absl::SimpleAtoi(word, &index)) return Bad(i + 1, absl::StrCat("not a number: ", word));
      groups.back().push_back(index);
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckGroups(parameters, rules, groups), "bucket plan"));
  return groups;
}

}  // namespace lockstep
