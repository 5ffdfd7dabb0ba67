#include "reducer/plan/bucket_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "reducer/plan/plan_testing.h"
#include "reducer/plan/status_trailer.h"

namespace lockstep {
namespace testing {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kUnlimited = SIZE_MAX;

Parameter Of(DType dtype, const std::vector<int64_t>& shape, DeviceId device = {}) {
  Parameter parameter = MakeParameter("", dtype, shape);
  parameter.device = device;
  return parameter;
}

Parameter F32(int64_t elements) { return Of(DType::kF32, {elements}); }

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

TEST(BucketPlan, IgnoredParametersHaveNoPlace) {
  std::vector<Parameter> table(4, F32(1));
  table[3].ignored = table[1].ignored = true;
  const BucketPlan plan = PlanBuckets(table, {{4}});
  EXPECT_THAT(GroupsOf(plan), ElementsAre(ElementsAre(2), ElementsAre(0)));
  EXPECT_EQ(plan.locations[1].bucket, BucketPlan::Location::kIgnored);
  EXPECT_EQ(plan.locations[0].bucket, 1);
}

TEST(BucketPlan, EveryDTypeAndDeviceUsesUpTheCapsByItself) {
  const DeviceId gpu0 = {DeviceKind::kCuda, 0};
  const DeviceId gpu1 = {DeviceKind::kCuda, 1};
  std::vector<Parameter> table;
  for (int i = 0; i < 3; ++i) {
    table.push_back(Of(DType::kF32, {1}));
    table.push_back(Of(DType::kF16, {2}));
    table.push_back(Of(DType::kF32, {1}, gpu0));
    table.push_back(Of(DType::kF32, {1}, gpu1));
  }
  // For each key: one gradient, then two.
  const BucketPlan plan = PlanBuckets(table, {{4, 8}});
  EXPECT_THAT(GroupsOf(plan), ElementsAre(ElementsAre(11), ElementsAre(10), ElementsAre(9), ElementsAre(8),
                                          ElementsAre(7, 3), ElementsAre(6, 2), ElementsAre(5, 1), ElementsAre(4, 0)));
  EXPECT_EQ(plan.buckets[4].device, gpu1);
  EXPECT_EQ(plan.buckets[6].dtype, DType::kF16);
}

TEST(BucketPlan, AGradientAboveTheCapIsNotSplit) {
  const std::vector<Parameter> table = {F32(1), F32(1 << 20), F32(1)};
  const BucketPlan plan = PlanBuckets(table, {{8}});
  EXPECT_THAT(GroupsOf(plan), ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_EQ(plan.buckets[0].slots[1].elements, size_t{1} << 20);
}

TEST(BucketPlan, AGradientOfNoElementsHasASlotAndFillsNoCap) {
  const std::vector<Parameter> table = {F32(3), Of(DType::kF32, {4, 0}), F32(3)};
  const BucketPlan plan = PlanBuckets(table, {{16}});
  ASSERT_THAT(GroupsOf(plan), ElementsAre(ElementsAre(2, 1, 0)));
  EXPECT_EQ(plan.buckets[0].slots[1].elements, 0);
  EXPECT_EQ(plan.buckets[0].slots[1].offset, plan.buckets[0].slots[2].offset);
}

TEST(BucketPlan, ABucketOfNoElementsIsItsMark) {
  const BucketPlan plan = PlanBuckets({Of(DType::kF64, {0})}, {{kUnlimited}});
  ASSERT_EQ(plan.buckets.size(), 1);
  EXPECT_EQ(plan.buckets[0].trailer, 0);
  EXPECT_EQ(plan.buckets[0].bytes(), StatusTrailer::Elements(1) * 8);
}

TEST(BucketPlan, AScalarIsOneElement) {
  EXPECT_EQ(PlanBuckets({Of(DType::kF32, {})}, {{0}}).buckets[0].slots[0].elements, 1);
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

TEST(BucketPlan, OfNoParametersIsEmpty) {
  const BucketPlan plan = PlanBuckets({}, {{0}});
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_TRUE(plan.locations.empty());
}

TEST(BucketPlan, TextHasOneLinePerBucket) {
  const std::string text = ToString(PlanBuckets({F32(1), F32(2)}, {{0}}));
  EXPECT_THAT(text, HasSubstr("bucket 0: 272 B f32 on host, parameters 1\n"));
  EXPECT_THAT(text, HasSubstr("bucket 1: 272 B f32 on host, parameters 0\n"));
}

// The rules of the header, for any table. Together with the order of parameters they leave no freedom.
void CheckRules(const std::vector<Parameter>& table, const std::vector<size_t>& caps, CapsFrom from,
                const BucketPlan& plan) {
  ASSERT_EQ(plan.locations.size(), table.size());
  std::vector<int> seen(table.size(), 0);
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
      ++seen[slot.parameter];
      EXPECT_EQ(plan.locations[slot.parameter].bucket, b);
      EXPECT_EQ(plan.locations[slot.parameter].slot, s);
      EXPECT_EQ(bucket.dtype, parameter.dtype);
      EXPECT_EQ(bucket.device, parameter.device);
      EXPECT_EQ(slot.elements, parameter.elements());
      EXPECT_EQ(slot.offset * SizeOf(bucket.dtype) % 256, 0);
      EXPECT_GE(slot.offset, behind) << "slots overlap";
      EXPECT_LT((slot.offset - behind) * SizeOf(bucket.dtype), 256) << "needless gap";
      behind = slot.offset + slot.elements;
      if (s > 0) {
        EXPECT_LT(slot.parameter, bucket.slots[s - 1].parameter);
      }
    }
    EXPECT_GE(bucket.trailer, behind);
    EXPECT_EQ(bucket.elements, bucket.trailer + StatusTrailer::Elements(bucket.slots.size()));
  }
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(seen[i], table[i].ignored ? 0 : 1);
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

TEST(BucketPlan, KeepsItsRulesForRandomTables) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random); };
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kComplex64, DType::kF8E4M3};
  const DeviceId devices[] = {{}, {DeviceKind::kCuda, 0}, {DeviceKind::kCuda, 1}};
  for (int round = 0; round < 300; ++round) {
    std::vector<Parameter> table;
    const int kinds = 1 + below(6);
    const int places = 1 + below(3);
    for (int left = below(60); left > 0; --left) {
      std::vector<int64_t> shape;
      for (int d = below(4); d > 0; --d) shape.push_back(below(12));
      table.push_back(Of(dtypes[below(kinds)], shape, devices[below(places)]));
      table.back().ignored = below(8) == 0;
    }
    std::vector<size_t> caps;
    for (int left = 1 + below(4); left > 0; --left) caps.push_back(below(3) == 0 ? 0 : below(4000));
    const CapsFrom from = below(2) == 0 ? CapsFrom::kFirst : CapsFrom::kLast;
    CheckRules(table, caps, from, PlanBuckets(table, {caps, from}));
    if (HasFailure()) return;
  }
}

std::vector<Parameter> ResNet50() {
  std::vector<Parameter> table;
  const auto convolution = [&](int64_t out, int64_t in, int64_t kernel) {
    table.push_back(Of(DType::kF32, {out, in, kernel, kernel}));
    table.push_back(F32(out));  // the norm behind it: scale and shift
    table.push_back(F32(out));
  };
  convolution(64, 3, 7);
  int64_t in = 64;
  const int64_t depths[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t block = 0; block < depths[stage]; ++block) {
      convolution(width, in, 1);
      convolution(width, width, 3);
      convolution(4 * width, width, 1);
      if (block == 0) convolution(4 * width, in, 1);
      in = 4 * width;
    }
  }
  table.push_back(Of(DType::kF32, {1000, 2048}));
  table.push_back(F32(1000));
  return table;
}

TEST(BucketPlan, OfResNet50StartsSmallAndContinuesNear25MiB) {
  const std::vector<Parameter> table = ResNet50();
  ASSERT_EQ(table.size(), 161);
  const size_t total = std::accumulate(table.begin(), table.end(), size_t{0},
                                       [](size_t sum, const Parameter& parameter) { return sum + parameter.bytes(); });
  ASSERT_EQ(total, size_t{4} * 25557032);

  const BucketPlan plan = PlanBuckets(table, {{kMiB, 25 * kMiB}});
  ASSERT_EQ(plan.buckets.size(), 5) << ToString(plan);
  // The classifier: its weights alone are more than the small cap.
  EXPECT_THAT(GroupsOf(plan)[0], ElementsAre(160, 159));
  const size_t largest = size_t{4} * 512 * 512 * 9;
  size_t planned = 0;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    planned += plan.buckets[b].bytes();
    if (b == 0 || b == 4) continue;
    EXPECT_GE(plan.buckets[b].bytes(), 25 * kMiB);
    EXPECT_LT(plan.buckets[b].bytes(), 25 * kMiB + largest);
  }
  EXPECT_GE(planned, total);
  EXPECT_LT(planned, total + total / 1000) << "alignment costs next to nothing";
}

}  // namespace
}  // namespace testing
}  // namespace lockstep
