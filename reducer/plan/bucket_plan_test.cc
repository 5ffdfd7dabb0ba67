// Bucket plans: from the expected order, and by other means (orders that were seen, groups that come from elsewhere, delayed and
// sparse parameters, another dtype on the wire); and plans as text.

#include "reducer/plan/bucket_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "reducer/plan/plan_testing.h"
#include "reducer/plan/status_trailer.h"

namespace lockstep::testing {
namespace {

constexpr size_t kUnlimited = SIZE_MAX;

Parameter Of(DType dtype, const std::vector<int64_t>& shape, DeviceId device = {}) {
  Parameter parameter = MakeParameter("", dtype, shape);
  parameter.device = device;
  return parameter;
}

Parameter F32(int64_t elements) { return Of(DType::kF32, {elements}); }

PlanRules Caps(std::vector<size_t> caps, CapsFrom from = CapsFrom::kFirst) {
  PlanRules rules;
  rules.caps_bytes = std::move(caps);
  rules.caps_from = from;
  return rules;
}

PlanRules Delayed(std::vector<size_t> delayed, size_t trigger) {
  PlanRules rules = Caps({kUnlimited});
  rules.delayed = std::move(delayed);
  rules.delayed_trigger = trigger;
  return rules;
}

std::vector<std::vector<size_t>> Contents(const BucketPlan& plan) {
  std::vector<std::vector<size_t>> contents;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    contents.emplace_back();
    for (const BucketPlan::Slot& slot : bucket.slots) contents.back().push_back(slot.parameter);
  }
  return contents;
}

std::vector<Parameter> Ones(int count) { return std::vector<Parameter>(count, F32(1)); }

TEST(BucketPlan, TakesParametersInReverseOrderUpToTheCaps) {
  const std::vector<Parameter> ones(8, F32(1));
  const std::vector<Parameter> tens(5, F32(10));  // 40 bytes each: the second reaches 80
  const struct {
    const char* what;
    std::vector<Parameter> table;
    PlanRules rules;
    BucketGroups groups;
  } cases[] = {
      {"reverse order", {F32(1), F32(2), F32(3)}, {{kUnlimited}}, {{2, 1, 0}}},
      {"a cap is a lower bound", tens, {{80}}, {{4, 3}, {2, 1}, {0}}},
      {"not reached by two", tens, {{81}}, {{4, 3, 2}, {1, 0}}},
      {"reached by one", tens, {{40}}, {{4}, {3}, {2}, {1}, {0}}},
      // 4 bytes each, in slots of 256.
      {"caps count gradients and not the gaps between them", {F32(1), F32(1), F32(1)}, {{12}}, {{2, 1, 0}}},
      {"a cap of zero gives every gradient a bucket", {F32(5), F32(0), F32(7)}, {{0}}, {{2}, {1}, {0}}},
      {"a gradient above the cap is not split", {F32(1), F32(1 << 20), F32(1)}, {{8}}, {{2, 1}, {0}}},
      {"caps are used up one by one and the last repeats", ones, {{4, 8, 12}}, {{7}, {6, 5}, {4, 3, 2}, {1, 0}}},
      {"the first may be the largest", ones, {{12, 4}}, {{7, 6, 5}, {4}, {3}, {2}, {1}, {0}}},
      {"caps from the last gradients make the last bucket small",
       std::vector<Parameter>(6, F32(1)),
       {{4, 12}, CapsFrom::kLast},
       {{5, 4}, {3, 2, 1}, {0}}},
      {"of two dtypes each has a small one",
       {F32(1), Of(DType::kF16, {2}), F32(1), Of(DType::kF16, {2}), F32(1)},
       {{4, 8}, CapsFrom::kLast},
       {{3}, {4, 2}, {1}, {0}}},
      // The f16 bucket is opened first and filled last.
      {"buckets are numbered by their last gradient",
       {Of(DType::kF16, {1}), F32(1), F32(1), Of(DType::kF16, {1})},
       {{kUnlimited}},
       {{2, 1}, {3, 0}}},
  };
  for (const auto& c : cases) EXPECT_EQ(GroupsOf(PlanBuckets(c.table, c.rules)), c.groups) << c.what;
}

TEST(BucketPlan, ABucketOfNoElementsIsItsMark) {
  const BucketPlan plan = PlanBuckets({Of(DType::kF64, {0})}, {{kUnlimited}});
  ASSERT_EQ(plan.buckets.size(), 1);
  EXPECT_EQ(plan.buckets[0].trailer, 0);
  EXPECT_EQ(plan.buckets[0].bytes(), StatusTrailer::Elements(1) * 8);
}

TEST(BucketPlan, SlotsBeginAtMultiplesOf256BytesAndTheMarkIsBehindThem) {
  for (const DType dtype : {DType::kF8E5M2, DType::kF16, DType::kF32, DType::kF64, DType::kComplex128}) {
    const size_t unit = 256 / SizeOf(dtype);
    const BucketPlan plan = PlanBuckets({Of(dtype, {3}), Of(dtype, {1}), Of(dtype, {257})}, {{kUnlimited}});
    ASSERT_EQ(plan.buckets.size(), 1);
    const BucketPlan::Bucket& bucket = plan.buckets[0];
    const size_t behind_first = (257 + unit - 1) / unit * unit;
    EXPECT_EQ(bucket.slots[0].offset, 0);
    EXPECT_EQ(bucket.slots[1].offset, behind_first);
    EXPECT_EQ(bucket.slots[2].offset, behind_first + unit);
    EXPECT_EQ(bucket.trailer, behind_first + 2 * unit) << Name(dtype);
    EXPECT_EQ(bucket.elements, bucket.trailer + StatusTrailer::Elements(bucket.slots.size()));
  }
}

TEST(BucketPlan, TextHasOneLinePerBucket) {
  const std::string text = ToString(PlanBuckets({F32(1), F32(2)}, {{0}}));
  EXPECT_THAT(text, HasSubstr("bucket 0: 272 B f32 on host, parameters 1\n"));
  EXPECT_THAT(text, HasSubstr("bucket 1: 272 B f32 on host, parameters 0\n"));
}

TEST(ExpectedOrder, IsTheReverseOfWhatIsReducedAndNotDelayed) {
  std::vector<Parameter> table = Ones(6);
  table[4].ignored = true;
  table[3].sparse = true;
  EXPECT_THAT(ExpectedOrder(table, Delayed({1, 5}, 0)), ElementsAre(3, 2, 0));
}

TEST(GroupByCaps, FollowsTheOrderItIsGiven) {
  const std::vector<size_t> order = {2, 0, 4, 1, 3};
  EXPECT_THAT(GroupByCaps(Ones(5), Caps({8}), order),
              ElementsAre(ElementsAre(2, 0), ElementsAre(4, 1), ElementsAre(3)));
  EXPECT_THAT(GroupByCaps(Ones(5), Caps({8}, CapsFrom::kLast), order),
              ElementsAre(ElementsAre(2), ElementsAre(0, 4), ElementsAre(1, 3)));
  EXPECT_THAT(GroupByCaps(Ones(5), Caps({4, 8}), order),
              ElementsAre(ElementsAre(2), ElementsAre(0, 4), ElementsAre(1, 3)));
}

TEST(GroupByCaps, GivesASparseParameterABucketInItsPlace) {
  std::vector<Parameter> table = Ones(4);
  table[2].sparse = true;
  // The others' bucket is not closed by it.
  EXPECT_THAT(GroupByCaps(table, Caps({kUnlimited}), Order{3, 2, 1, 0}),
              ElementsAre(ElementsAre(2), ElementsAre(3, 1, 0)));
}

TEST(CheckGroups, AcceptsAnyGroupingInAnyOrder) {
  std::vector<Parameter> table = Ones(4);
  table[1].ignored = true;
  for (const BucketGroups& groups : {BucketGroups{{0}, {2}, {3}}, {{3, 0, 2}}, {{2}, {0, 3}}}) {
    LOCKSTEP_EXPECT_OK(CheckGroups(table, Caps({0}), groups));
  }
}

TEST(CheckGroups, SaysWhatIsWrong) {
  std::vector<Parameter> table = Ones(7);
  table[1].ignored = true;
  table[3].dtype = DType::kF16;
  table[5].device = {DeviceKind::kCuda, 0};
  table[6].sparse = true;
  PlanRules rules = Delayed({4}, 0);
  const BucketGroups good = {{2, 0}, {3}, {5}, {6}};
  LOCKSTEP_EXPECT_OK(CheckGroups(table, rules, good));
  const auto with = [&](size_t group, std::vector<size_t> contents) {
    BucketGroups groups = good;
    groups[group] = std::move(contents);
    return CheckGroups(table, rules, groups);
  };
  EXPECT_THAT(with(0, {}), InvalidArgument("a bucket without parameters"));
  EXPECT_THAT(with(0, {2}), InvalidArgument("parameter 0 (f32[1]) is in no bucket"));
  EXPECT_THAT(with(0, {2, 0, 7}), InvalidArgument("parameter 7 is out of range: there are 7"));
  EXPECT_THAT(with(0, {2, 0, SIZE_MAX}), InvalidArgument("is out of range"));
  EXPECT_THAT(with(0, {2, 0, 2}), InvalidArgument("parameter 2 (f32[1]) is in two buckets, ignored or delayed"));
  EXPECT_THAT(with(0, {2, 0, 1}), InvalidArgument("parameter 1 (f32[1]) is in two buckets, ignored or delayed"));
  EXPECT_THAT(with(0, {2, 0, 4}), InvalidArgument("parameter 4 (f32[1]) is in two buckets, ignored or delayed"));
  EXPECT_THAT(with(0, {2, 0, 3}), InvalidArgument("parameter 3 (f16[1]) differs in dtype or device from parameter 2"));
  EXPECT_THAT(with(0, {2, 0, 5}), InvalidArgument("parameter 5 (f32[1]) differs in dtype or device from parameter 2"));
  EXPECT_THAT(with(0, {2, 0, 6}), InvalidArgument("parameter 6 (f32[1]) is sparse and is to share a bucket"));
  EXPECT_THAT(with(3, {6, 2}), InvalidArgument("parameter 6 (f32[1]) is sparse and is to share a bucket"));
  EXPECT_THAT(CheckGroups(table, rules, {}), InvalidArgument("is in no bucket"));
}

TEST(CheckRules, SaysWhatIsWrong) {
  std::vector<Parameter> table = Ones(4);
  table[2].ignored = true;
  table[3].sparse = true;
  LOCKSTEP_EXPECT_OK(CheckRules(Delayed({1}, 0), table));
  EXPECT_THAT(CheckRules(Caps({}), table), InvalidArgument("the list of bucket caps is empty"));
  for (const DType dtype : {DType::kF32, DType::kF8E5M2, DType::kU8, DType::kComplex64}) {
    PlanRules rules = Caps({0});
    rules.wire = dtype;
    EXPECT_THAT(CheckRules(rules, table), InvalidArgument(absl::StrCat("to f16 or bf16, not to ", Name(dtype))));
  }
  EXPECT_THAT(CheckRules(Delayed({4}, 0), table), InvalidArgument("delayed parameter 4 is out of range: there are 4"));
  EXPECT_THAT(CheckRules(Delayed({1, 1}, 0), table), InvalidArgument("delayed parameter 1 (f32[1]) is named twice"));
  EXPECT_THAT(CheckRules(Delayed({2}, 0), table), InvalidArgument("delayed parameter 2 (f32[1]) is ignored"));
  EXPECT_THAT(CheckRules(Delayed({3}, 0), table), InvalidArgument("delayed parameter 3 (f32[1]) is sparse"));
  EXPECT_THAT(CheckRules(Delayed({1}, 4), table), InvalidArgument("parameter 4, is out of range: there are 4"));
  EXPECT_THAT(CheckRules(Delayed({1}, 1), table), InvalidArgument("is itself delayed"));
  EXPECT_THAT(CheckRules(Delayed({1}, 2), table), InvalidArgument("is itself ignored"));
}

TEST(LayOut, PutsDelayedBucketsDirectlyBehindTheirTriggers) {
  std::vector<Parameter> table = Ones(6);
  table[1].dtype = DType::kF16;
  PlanRules rules = Delayed({0, 1, 2}, 4);
  rules.caps_bytes = {4};
  const BucketPlan plan = PlanBuckets(table, rules);
  // In the order in which they were named, by dtype; caps count nothing there.
  EXPECT_THAT(
      Contents(plan),
      ::testing::AnyOf(ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(0, 2), ElementsAre(1), ElementsAre(3)),
                       ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(1), ElementsAre(0, 2), ElementsAre(3))));
  for (size_t b = 0; b < plan.buckets.size(); ++b) EXPECT_EQ(plan.buckets[b].delayed, b == 2 || b == 3);
  for (const size_t index : {0, 1, 2}) EXPECT_TRUE(plan.buckets[plan.locations[index].bucket].delayed);
  EXPECT_THAT(GroupsOf(plan), ElementsAre(ElementsAre(5), ElementsAre(4), ElementsAre(3)));
  EXPECT_THAT(ToString(plan), HasSubstr(", delayed, parameters"));
}

TEST(LayOut, KeepsTheOrderInWhichDelayedParametersAreNamed) {
  EXPECT_THAT(Contents(PlanBuckets(Ones(4), Delayed({0, 2, 1}, 3))), ElementsAre(ElementsAre(3), ElementsAre(0, 2, 1)));
}

TEST(LayOut, GivesASparseParameterATrailerAlone) {
  std::vector<Parameter> table = std::vector<Parameter>(2, F32(100));
  table[1].sparse = true;
  PlanRules rules = Caps({kUnlimited});
  rules.wire = DType::kF16;
  const BucketPlan plan = PlanBuckets(table, rules);
  ASSERT_THAT(Contents(plan), ElementsAre(ElementsAre(1), ElementsAre(0)));
  EXPECT_TRUE(plan.buckets[0].sparse);
  EXPECT_EQ(plan.buckets[0].trailer, 0);
  EXPECT_EQ(plan.buckets[0].elements, StatusTrailer::Elements(1));
  EXPECT_EQ(plan.buckets[0].wire, DType::kF32) << "rows are sent as they are";
  EXPECT_FALSE(plan.buckets[1].sparse);
  EXPECT_THAT(ToString(plan), HasSubstr(", sparse, parameters 1"));
}

TEST(LayOut, SendsRealFloatsInTheWiresDTypeAndAlignsBoth) {
  for (const DType dtype : kFloatAndComplexDTypes) {
    for (const absl::optional<DType> wire : {absl::optional<DType>(), absl::optional<DType>(DType::kF16)}) {
      PlanRules rules = Caps({kUnlimited});
      rules.wire = wire;
      const BucketPlan plan = PlanBuckets(std::vector<Parameter>(5, MakeParameter("", dtype, {7})), rules);
      ASSERT_EQ(plan.buckets.size(), 1);
      const BucketPlan::Bucket& bucket = plan.buckets[0];
      EXPECT_EQ(bucket.dtype, dtype);
      EXPECT_EQ(bucket.wire, IsComplex(dtype) ? dtype : wire.value_or(dtype));
      EXPECT_EQ(bucket.bytes(), bucket.elements * SizeOf(bucket.wire));
      // A slot begins at such an offset in the bucket and in memory for views of it.
      for (const BucketPlan::Slot& slot : bucket.slots) {
        EXPECT_EQ(slot.offset * SizeOf(bucket.dtype) % 256, 0) << Name(dtype);
        EXPECT_EQ(slot.offset * SizeOf(bucket.wire) % 256, 0) << Name(dtype);
      }
    }
  }
}

// ---- Of random tables.

struct Random {
  explicit Random(unsigned seed) : engine(seed) {}
  int Below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(engine); }
  Order Shuffled(Order order) {
    std::shuffle(order.begin(), order.end(), engine);
    return order;
  }
  std::mt19937 engine;
};

// Of up to 60 parameters on up to three devices: with dimensions of no and of some elements, scalars, ignored and, if asked for, sparse
// ones.
std::vector<Parameter> RandomTable(Random& random, bool with_sparse) {
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kComplex128, DType::kF8E4M3};
  const DeviceId devices[] = {{}, {DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1}};
  const int kinds = 1 + random.Below(6);
  const int places = 1 + random.Below(3);
  std::vector<Parameter> table;
  for (int left = random.Below(60); left > 0; --left) {
    std::vector<int64_t> shape;
    for (int d = random.Below(4); d > 0; --d) shape.push_back(random.Below(12));
    table.push_back(Of(dtypes[random.Below(kinds)], shape, devices[random.Below(places)]));
    table.back().ignored = random.Below(8) == 0;
    table.back().sparse = with_sparse && random.Below(10) == 0;
  }
  return table;
}

PlanRules RandomRules(Random& random, const std::vector<Parameter>& table) {
  PlanRules rules = Caps({});
  for (int left = 1 + random.Below(3); left > 0; --left) rules.caps_bytes.push_back(random.Below(4000));
  rules.caps_from = random.Below(2) == 0 ? CapsFrom::kFirst : CapsFrom::kLast;
  if (random.Below(2) == 0) rules.wire = random.Below(2) == 0 ? DType::kF16 : DType::kBF16;
  Order reduced;
  for (size_t i = 0; i < table.size(); ++i) {
    if (!table[i].ignored) reduced.push_back(i);
  }
  if (reduced.size() < 2) return rules;
  reduced = random.Shuffled(reduced);
  rules.delayed_trigger = reduced.back();
  for (size_t i = 0; i + 1 < reduced.size() && i < 3; ++i) {
    if (!table[reduced[i]].sparse) rules.delayed.push_back(reduced[i]);
  }
  return rules;
}

// Any groups at all: parameters of a (dtype, device) in any order, cut anywhere.
BucketGroups RandomGroups(Random& random, const std::vector<Parameter>& table, const PlanRules& rules) {
  BucketGroups groups;
  std::map<std::pair<DType, std::string>, size_t> open;
  for (const size_t index : random.Shuffled(ExpectedOrder(table, rules))) {
    const auto key = std::make_pair(table[index].dtype, Name(table[index].device));
    const auto found = open.find(key);
    if (table[index].sparse || found == open.end() || random.Below(3) == 0) {
      if (!table[index].sparse) open[key] = groups.size();
      groups.push_back({index});
    } else {
      groups[found->second].push_back(index);
    }
  }
  return groups;
}

// What the reducer needs for it: every bucket begins at a multiple of the alignment.
size_t BytesOf(const BucketPlan& plan) {
  size_t bytes = 0;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    bytes += (bucket.bytes() + BucketPlan::kAlignment - 1) / BucketPlan::kAlignment * BucketPlan::kAlignment;
  }
  return bytes;
}

void ExpectWhole(const std::vector<Parameter>& table, const BucketPlan& plan) {
  std::vector<int> seen(table.size(), 0);
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    size_t behind = 0;
    for (size_t s = 0; s < plan.buckets[b].slots.size(); ++s) {
      const BucketPlan::Slot& slot = plan.buckets[b].slots[s];
      ++seen[slot.parameter];
      EXPECT_EQ(plan.locations[slot.parameter].bucket, b);
      EXPECT_EQ(plan.locations[slot.parameter].slot, s);
      EXPECT_GE(slot.offset, behind);
      behind = slot.offset + slot.elements;
    }
    EXPECT_GE(plan.buckets[b].trailer, behind);
    EXPECT_EQ(plan.buckets[b].elements,
              plan.buckets[b].trailer + StatusTrailer::Elements(plan.buckets[b].slots.size()));
  }
  for (size_t i = 0; i < table.size(); ++i) EXPECT_EQ(seen[i], table[i].ignored ? 0 : 1);
}

// The rules of the header, for any table. Together with the order of parameters they leave no freedom.
void ExpectRulesKept(const std::vector<Parameter>& table, const std::vector<size_t>& caps, CapsFrom from,
                     const BucketPlan& plan) {
  ASSERT_EQ(plan.locations.size(), table.size());
  ExpectWhole(table, plan);
  std::map<std::tuple<DType, DeviceKind, int>, std::vector<const BucketPlan::Bucket*>> by_key;
  size_t last = table.size();
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketPlan::Bucket& bucket = plan.buckets[b];
    ASSERT_FALSE(bucket.slots.empty());
    by_key[{bucket.dtype, bucket.device.kind, bucket.device.index}].push_back(&bucket);
    EXPECT_LT(bucket.slots.back().parameter, last) << "bucket " << b << " is out of order";
    last = bucket.slots.back().parameter;
    size_t behind = 0;
    for (size_t s = 0; s < bucket.slots.size(); ++s) {
      const BucketPlan::Slot& slot = bucket.slots[s];
      const Parameter& parameter = table[slot.parameter];
      EXPECT_EQ(bucket.dtype, parameter.dtype);
      EXPECT_EQ(bucket.device, parameter.device);
      EXPECT_EQ(slot.elements, parameter.elements());
      EXPECT_EQ(slot.offset * SizeOf(bucket.dtype) % 256, 0);
      EXPECT_LT((slot.offset - behind) * SizeOf(bucket.dtype), 256) << "needless gap";
      behind = slot.offset + slot.elements;
      if (s > 0) {
        EXPECT_LT(slot.parameter, bucket.slots[s - 1].parameter);
      }
    }
  }
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(plan.locations[i].bucket == BucketPlan::Location::kIgnored, table[i].ignored);
  }
  for (auto& [key, buckets] : by_key) {
    if (from == CapsFrom::kLast) std::reverse(buckets.begin(), buckets.end());
    for (size_t b = 0; b < buckets.size(); ++b) {
      const size_t cap = caps[std::min(b, caps.size() - 1)];
      std::vector<BucketPlan::Slot> slots = buckets[b]->slots;
      if (from == CapsFrom::kLast) std::reverse(slots.begin(), slots.end());
      size_t bytes = 0;
      for (size_t s = 0; s < slots.size(); ++s) {
        if (s > 0) {
          EXPECT_LT(bytes, cap) << "a full bucket was filled further";
        }
        bytes += slots[s].elements * SizeOf(buckets[b]->dtype);
      }
      if (b + 1 < buckets.size()) {
        EXPECT_GE(bytes, cap) << "a bucket was closed too early";
      }
    }
  }
}

void ForRandomTables(int rounds, bool with_sparse,
                     const std::function<void(Random&, const std::vector<Parameter>&)>& body) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (; rounds > 0 && !::testing::Test::HasFailure(); --rounds) body(random, RandomTable(random, with_sparse));
}

TEST(Plans, KeepTheirRules) {
  ForRandomTables(300, /*with_sparse=*/false, [](Random& random, const std::vector<Parameter>& table) {
    std::vector<size_t> caps;
    for (int left = 1 + random.Below(4); left > 0; --left) {
      caps.push_back(random.Below(3) == 0 ? 0 : random.Below(4000));
    }
    const CapsFrom from = random.Below(2) == 0 ? CapsFrom::kFirst : CapsFrom::kLast;
    ExpectRulesKept(table, caps, from, PlanBuckets(table, {caps, from}));
  });
}

TEST(Plans, OfAnyOrderAndAnyGroupsAreWholeAndFitInPlanBytesMax) {
  ForRandomTables(500, /*with_sparse=*/true, [](Random& random, const std::vector<Parameter>& table) {
    const PlanRules rules = RandomRules(random, table);
    LOCKSTEP_ASSERT_OK(CheckRules(rules, table));
    const size_t bytes_max = PlanBytesMax(table, rules);
    for (int orders = 0; orders < 5; ++orders) {
      const Order order = random.Shuffled(ExpectedOrder(table, rules));
      for (const BucketGroups& groups : {GroupByCaps(table, rules, order), RandomGroups(random, table, rules)}) {
        LOCKSTEP_ASSERT_OK(CheckGroups(table, rules, groups));
        const BucketPlan plan = LayOut(table, rules, groups);
        ExpectWhole(table, plan);
        EXPECT_EQ(GroupsOf(plan), groups);
        EXPECT_LE(BytesOf(plan), bytes_max);
      }
    }
  });
}

// Within a bucket, and of the buckets' last gradients, the order is the one that was given.
TEST(Plans, OfAnOrderKeepIt) {
  ForRandomTables(200, /*with_sparse=*/true, [](Random& random, const std::vector<Parameter>& table) {
    const PlanRules rules = RandomRules(random, table);
    const Order order = random.Shuffled(ExpectedOrder(table, rules));
    std::vector<size_t> place(table.size(), 0);
    for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
    size_t last = 0;
    for (const std::vector<size_t>& group : GroupByCaps(table, rules, order)) {
      for (size_t i = 1; i < group.size(); ++i) EXPECT_LT(place[group[i - 1]], place[group[i]]);
      EXPECT_GE(place[group.back()], last);
      last = place[group.back()];
    }
  });
}

// ---- Plans as text.

std::vector<Parameter> Table() {
  std::vector<Parameter> table = Vectors(6, 4);
  table[1].dtype = DType::kF16;
  table[4].ignored = true;
  return table;
}

PlanRules Rules() {
  PlanRules rules;
  rules.caps_bytes = {0};
  return rules;
}

const BucketGroups kGroups = {{5, 0}, {1}, {2, 3}};

absl::StatusOr<BucketGroups> FromText(const std::string& text) { return PlanFromText(Table(), Rules(), text); }

// What reading says of the text with its third and later lines replaced.
absl::Status Read(const std::string& buckets) {
  const std::string good = PlanToText(Table(), kGroups);
  const std::string head = good.substr(0, good.find("bucket 5"));
  return FromText(head + buckets).status();
}

TEST(PlanText, IsOneLinePerBucket) {
  EXPECT_THAT(
      PlanToText(Table(), kGroups),
      ::testing::MatchesRegex("lockstep-bucket-plan 1\nparameters [0-9a-f]+\nbucket 5 0\nbucket 1\nbucket 2 3\n"));
  const std::vector<std::string> lines = absl::StrSplit(PlanToText(Table(), kGroups), '\n');
  EXPECT_EQ(lines[1].size(), std::string("parameters ").size() + 16);
}

TEST(PlanText, ComesBack) {
  EXPECT_THAT(FromText(PlanToText(Table(), kGroups)), IsOkAndHolds(kGroups));
  // Also from a file whose last line has no end, or which has empty ones.
  std::string text = PlanToText(Table(), kGroups);
  text.pop_back();
  EXPECT_THAT(FromText(text), IsOkAndHolds(kGroups));
  EXPECT_THAT(FromText(absl::StrReplaceAll(text, {{"\n", "\n\n"}})), IsOkAndHolds(kGroups));
}

TEST(PlanText, ComesBackFromEveryPlanOfCaps) {
  std::vector<Parameter> table = Table();
  for (const size_t cap : {size_t{0}, size_t{20}, size_t{1000}}) {
    for (const CapsFrom from : {CapsFrom::kFirst, CapsFrom::kLast}) {
      PlanRules rules{{cap}, from};
      rules.delayed = {2};
      rules.delayed_trigger = 3;
      const BucketGroups groups = GroupsOf(PlanBuckets(table, rules));
      EXPECT_THAT(PlanFromText(table, rules, PlanToText(table, groups)), IsOkAndHolds(groups));
    }
  }
}

TEST(PlanText, IsRefusedWithAnotherTitle) {
  const std::string good = PlanToText(Table(), kGroups);
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("bucket 5 0\n"), " " + good,
        absl::StrReplaceAll(good, {{"plan 1", "plan 2"}}), absl::StrReplaceAll(good, {{"plan 1", "plan 1 "}})}) {
    EXPECT_THAT(FromText(text), InvalidArgument("bucket plan, line 1: not \"lockstep-bucket-plan 1\""));
  }
}

TEST(PlanText, IsRefusedForAnotherTable) {
  const std::string good = PlanToText(Table(), kGroups);
  EXPECT_THAT(FromText("lockstep-bucket-plan 1\n"), InvalidArgument("line 2: it was made for another"));
  const size_t hash = good.find("parameters ") + std::string("parameters ").size();
  for (size_t digit = 0; digit < 16; ++digit) {
    std::string text = good;
    text[hash + digit] = text[hash + digit] == '0' ? '1' : '0';
    EXPECT_THAT(FromText(text), InvalidArgument("line 2: it was made for another"));
  }
  std::vector<std::vector<Parameter>> others(5, Table());
  others[0][3].name = "q3";
  others[1][3].shape = {2, 2};
  others[2][3].dtype = DType::kBF16;
  others[3].emplace_back().shape = {1};
  others[4][4].ignored = false;
  for (const std::vector<Parameter>& other : others) {
    EXPECT_THAT(PlanFromText(other, Rules(), good),
                InvalidArgument("line 2: it was made for another table of parameters"));
  }
}

TEST(PlanText, IsRefusedWhereALineIsNoBucket) {
  EXPECT_THAT(Read("buckets 5 0\n"), InvalidArgument("bucket plan, line 3: not a bucket"));
  EXPECT_THAT(Read("bucket\n"), InvalidArgument("bucket plan, line 3: not a bucket"));
  EXPECT_THAT(Read("bucket 5 0\nbucket 1\n 2 3\n"), InvalidArgument("bucket plan, line 5: not a bucket"));
  EXPECT_THAT(Read("bucket 5 0\nbucket 1\nbucket 2 x\n"), InvalidArgument("bucket plan, line 5: not a number: x"));
  EXPECT_THAT(Read("bucket 5 -1\n"), InvalidArgument("bucket plan, line 3: not a number: -1"));
  EXPECT_THAT(Read("bucket 5,0\n"), InvalidArgument("bucket plan, line 3: not a number: 5,0"));
  EXPECT_THAT(Read("bucket 5 1e0\n"), InvalidArgument("bucket plan, line 3: not a number: 1e0"));
  EXPECT_THAT(Read("bucket 99999999999999999999999\n"),
              InvalidArgument("line 3: not a number: 99999999999999999999999"));
}

// What CheckGroups() refuses.
TEST(PlanText, IsRefusedWithGroupsThatCannotBe) {
  EXPECT_THAT(Read(""), InvalidArgument("bucket plan: parameter 0 'p0' (f32[4]) is in no bucket"));
  EXPECT_THAT(Read("bucket \n"), InvalidArgument("bucket plan: a bucket without parameters"));
}

TEST(PlanText, IsRefusedWhereItListsDelayedParameters) {
  PlanRules rules = Rules();
  rules.delayed = {2};
  rules.delayed_trigger = 3;
  EXPECT_THAT(PlanFromText(Table(), rules, PlanToText(Table(), kGroups)),
              InvalidArgument("parameter 2 'p2' (f32[4]) is in two buckets, ignored or delayed"));
}

// Whatever a disk does to it: a plan that fits the table, or an error.
TEST(PlanText, AnyDamageIsAnErrorOrAPlanThatFits) {
  const std::string good = PlanToText(Table(), kGroups);
  for (size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(FromText(good.substr(0, at)).ok() && at + 1 < good.size()) << "cut at " << at;
    for (const char byte : {'\0', '\n', ' ', '0', '7', 'b', '\xFF'}) {
      std::string text = good;
      text[at] = byte;
      const auto groups = FromText(text);
      if (groups.ok()) {
        LOCKSTEP_EXPECT_OK(CheckGroups(Table(), Rules(), *groups));
      } else {
        EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
