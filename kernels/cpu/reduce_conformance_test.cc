// Every variant's reductions against the reference. Combine functions: dtype x op x size x alignment x aliasing, and all pairs
// of codes where a dtype is small enough. Reduce-many functions and scaled sums: dtype x op x sources x targets x size x
// alignment x aliasing. Bits beside the arrays are left alone. Equal to the reference is equal to each other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"
#include "kernels/reference_testing.h"

namespace lockstep::kernels {
namespace {

constexpr uint64_t kSeed = 20240607;

bool IsReduction(DType dtype, ReduceOp op) {
  return op != ReduceOp::kAvg && op != ReduceOp::kPremulSum && IsDefined(dtype, op);
}

class ReduceConformance : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    table_ = TableOf(GetParam());
    if (table_ == nullptr) GTEST_SKIP() << "this processor does not support " << Name(GetParam());
  }

  CombineFunction CombineOf(DType dtype, ReduceOp op) const {
    return table_->combine[static_cast<int>(dtype)][static_cast<int>(op)];
  }
  ReduceManyFunction ReduceManyOf(DType dtype, ReduceOp op) const {
    return table_->reduce_many[static_cast<int>(dtype)][static_cast<int>(op)];
  }
  ScaledSumFunction ScaledSumOf(DType dtype) const { return table_->scaled_sum[static_cast<int>(dtype)]; }

 private:
  const KernelTable* table_ = nullptr;
};

TEST_P(ReduceConformance, HasFunctionsExactlyWhereTheOperationIsDefined) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      EXPECT_EQ(CombineOf(dtype, op) != nullptr, IsReduction(dtype, op)) << Name(op) << " of " << Name(dtype);
      EXPECT_EQ(ReduceManyOf(dtype, op) != nullptr, IsReduction(dtype, op)) << Name(op) << " of " << Name(dtype);
    }
    EXPECT_EQ(ScaledSumOf(dtype) != nullptr, IsFloat(dtype) || IsComplex(dtype)) << Name(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ReduceConformance, testing::ValuesIn(kAllVariants),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ---- Of two arrays.

class CombineConformance : public ReduceConformance {
 protected:
  static constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 257, 999, 4099};
  static constexpr size_t kSizeMax = 4099;

  enum class Alias { kNone, kLeft, kRight, kBoth };

  struct Offsets {
    size_t target;
    size_t left;
    size_t right;
  };
  static constexpr Offsets kOffsets[] = {{0, 0, 0}, {1, 3, 5}, {7, 2, 1}, {4, 4, 6}};

  static std::string Hex(const uint8_t* bytes, size_t count) {
    std::string text;
    for (size_t i = count; i-- > 0;) {
      char digits[3];
      snprintf(digits, sizeof(digits), "%02x", bytes[i]);
      text += digits;
    }
    return text;
  }

  // Combines the arrays whole and reports the first wrong element with its operands.
  void ExpectEqualsReference(DType dtype, ReduceOp op, const std::vector<uint8_t>& left,
                             const std::vector<uint8_t>& right) const {
    const size_t size = SizeOf(dtype);
    const size_t count = left.size() / size;
    std::vector<uint8_t> expected(left.size());
    std::vector<uint8_t> actual(left.size());
    ReferenceCombine(dtype, op, expected.data(), left.data(), right.data(), count);
    CombineOf(dtype, op)(actual.data(), left.data(), right.data(), count);
    if (actual == expected) return;
    for (size_t i = 0; i < count; ++i) {
      const size_t at = i * size;
      ASSERT_EQ(Hex(&actual[at], size), Hex(&expected[at], size))
          << Name(op) << " of " << Name(dtype) << " " << Hex(&left[at], size) << " and " << Hex(&right[at], size);
    }
  }
};

TEST_P(CombineConformance, EqualsTheReferenceForEverySizeAlignmentAndAlias) {
  std::mt19937_64 random(kSeed);
  for (DType dtype : kAllDTypes) {
    const size_t size = SizeOf(dtype);
    const std::vector<uint8_t> left = TestElements(dtype, kSizeMax, random);
    const std::vector<uint8_t> right = TestElements(dtype, kSizeMax, random);
    for (ReduceOp op : kAllReduceOps) {
      if (!IsReduction(dtype, op)) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsReference(dtype, op, left, right)) << "seed " << kSeed;
      std::vector<uint8_t> expected(left.size());
      std::vector<uint8_t> doubled(left.size());
      ReferenceCombine(dtype, op, expected.data(), left.data(), right.data(), kSizeMax);
      ReferenceCombine(dtype, op, doubled.data(), left.data(), left.data(), kSizeMax);
      for (size_t count : kSizes) {
        for (const Offsets& offsets : kOffsets) {
          if (count == kSizeMax && offsets.target != 1) continue;  // alignment shows in the shorter ones
          for (Alias alias : {Alias::kNone, Alias::kLeft, Alias::kRight, Alias::kBoth}) {
            GuardedBytes l(count * size, offsets.left);
            GuardedBytes r(count * size, offsets.right);
            GuardedBytes t(count * size, offsets.target);
            l.Fill(left.data());
            r.Fill(right.data());
            GuardedBytes& target = alias == Alias::kNone ? t : alias == Alias::kRight ? r : l;
            GuardedBytes& second = alias == Alias::kBoth ? l : r;
            CombineOf(dtype, op)(target.data(), l.data(), second.data(), count);
            const std::vector<uint8_t>& want = alias == Alias::kBoth ? doubled : expected;
            ASSERT_TRUE(std::memcmp(target.data(), want.data(), count * size) == 0 && l.GuardsIntact() &&
                        r.GuardsIntact() && t.GuardsIntact())
                << Name(op) << " of " << Name(dtype) << ", " << count << " elements, offsets " << offsets.target << ", "
                << offsets.left << ", " << offsets.right << ", alias " << static_cast<int>(alias);
          }
        }
      }
    }
  }
}

// In both orders: the reference does not depend on it.
TEST_P(CombineConformance, EqualsTheReferenceForEveryPairOfSpecialCodes) {
  for (DType dtype : kAllDTypes) {
    const std::vector<uint64_t> codes = SpecialCodes(dtype);
    const size_t parts = IsComplex(dtype) ? 2 : 1;
    const size_t part_bytes = SizeOf(dtype) / parts;
    const size_t n = codes.size();
    std::vector<uint8_t> left(n * n * SizeOf(dtype));
    std::vector<uint8_t> right(left.size());
    for (size_t i = 0; i < n * n; ++i) {
      PutCode(left, i * parts, part_bytes, codes[i / n]);
      PutCode(right, i * parts, part_bytes, codes[i % n]);
      // Imaginary parts: other codes, in other company for every pair of real ones.
      if (parts == 1) continue;
      PutCode(left, i * parts + 1, part_bytes, codes[i * 5 % n]);
      PutCode(right, i * parts + 1, part_bytes, codes[(i / n + i * 3) % n]);
    }
    for (ReduceOp op : kAllReduceOps) {
      if (!IsReduction(dtype, op)) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsReference(dtype, op, left, right));
    }
  }
}

TEST_P(CombineConformance, EqualsTheReferenceForAllPairsOfOneByteCodes) {
  std::vector<uint8_t> left(65536);
  std::vector<uint8_t> right(65536);
  for (size_t i = 0; i < 65536; ++i) {
    left[i] = static_cast<uint8_t>(i >> 8);
    right[i] = static_cast<uint8_t>(i);
  }
  for (DType dtype : kAllDTypes) {
    if (SizeOf(dtype) != 1) continue;
    for (ReduceOp op : kAllReduceOps) {
      if (!IsReduction(dtype, op)) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectEqualsReference(dtype, op, left, right));
    }
  }
}

// All codes on one side, a few of every kind on the other.
TEST_P(CombineConformance, EqualsTheReferenceForADenseSampleOfTwoByteCodes) {
  std::mt19937_64 random(kSeed + 2);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const std::vector<uint64_t> special = SpecialCodes(dtype);
    std::vector<uint64_t> partners;
    for (int i = 0; i < 4; ++i) partners.push_back(special[random() % special.size()]);
    for (int i = 0; i < 4; ++i) partners.push_back(random() & 0xFFFF);
    std::vector<uint8_t> left(2 * 65536);
    std::vector<uint8_t> right(2 * 65536);
    for (size_t i = 0; i < 65536; ++i) PutCode(left, i, 2, i);
    for (uint64_t partner : partners) {
      for (size_t i = 0; i < 65536; ++i) PutCode(right, i, 2, partner);
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
        ASSERT_NO_FATAL_FAILURE(ExpectEqualsReference(dtype, op, left, right)) << "seed " << kSeed + 2;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CombineConformance, testing::ValuesIn(kAllVariants),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ---- Of any number of arrays.
//
// The reference folds with the operation of the reference above, and rounds each step of wide dtypes as that does. So what ranks exchange
// pairwise and what they fold at once have the same bits: of two sources always, of more in dtypes of 32 bits and more.

class ReduceManyConformance : public ReduceConformance {
 protected:
  static constexpr int kSourcesMax = 8;
  static constexpr int kTargetsMax = 3;
  // Around one vector of each variant, around several at once, and long enough for many.
  static constexpr size_t kSizes[] = {0, 1, 3, 7, 16, 17, 31, 63, 64, 65, 128, 255, 257, 1027};
  static constexpr size_t kSizeMax = 1027;

  // Which targets are sources: none, the first is the first source, the first is the last source, or target t is source t
  // as far as there are sources (what ranks that share memory do).
  enum class Alias { kNone, kFirst, kLast, kEach };
  static constexpr Alias kAliases[] = {Alias::kNone, Alias::kFirst, Alias::kLast, Alias::kEach};

  using Arrays = std::vector<std::vector<uint8_t>>;

  static Arrays TestSources(DType dtype, size_t count, std::mt19937_64& random) {
    Arrays sources;
    for (int s = 0; s < kSourcesMax; ++s) sources.push_back(TestElements(dtype, count, random));
    return sources;
  }

  static std::vector<uint8_t> Expected(DType dtype, ReduceOp op, const Arrays& sources, int source_count) {
    std::vector<const void*> pointers;
    for (const std::vector<uint8_t>& source : sources) pointers.push_back(source.data());
    std::vector<uint8_t> expected(sources[0].size());
    ReferenceReduceMany(dtype, op, expected.data(), pointers.data(), source_count, expected.size() / SizeOf(dtype));
    return expected;
  }

  // That of each source scaled by itself, each rounded to the dtype.
  static std::vector<uint8_t> ExpectedScaled(DType dtype, const Arrays& sources, int source_count, double factor) {
    Arrays scaled = sources;
    for (std::vector<uint8_t>& source : scaled) {
      ReferenceScale(dtype, source.data(), source.data(), source.size() / SizeOf(dtype), factor);
    }
    return Expected(dtype, ReduceOp::kSum, scaled, source_count);
  }

  // One call of what is called like a ReduceManyFunction: true if every target holds `expected`, sources that are no
  // target are as they were, and so is what surrounds them all.
  template <typename Reduce>
  bool Holds(Reduce reduce, const Arrays& values, int source_count, int target_count, size_t bytes, size_t count,
             Alias alias, size_t offset, const std::vector<uint8_t>& expected) const {
    std::vector<std::unique_ptr<GuardedBytes>> arrays;
    std::vector<const void*> sources;
    std::vector<void*> targets;
    for (int s = 0; s < source_count; ++s) {
      // Neighbours differ in alignment, unless all are aligned.
      arrays.push_back(std::make_unique<GuardedBytes>(bytes, offset == 0 ? 0 : (offset + 3 * s) % 8));
      arrays.back()->Fill(values[s].data());
      sources.push_back(arrays.back()->data());
    }
    for (int t = 0; t < target_count; ++t) {
      const int source = alias == Alias::kEach              ? t
                         : alias == Alias::kFirst && t == 0 ? 0
                         : alias == Alias::kLast && t == 0  ? source_count - 1
                                                            : source_count;
      if (source < source_count) {
        targets.push_back(arrays[source]->data());
        continue;
      }
      arrays.push_back(std::make_unique<GuardedBytes>(bytes, offset));
      targets.push_back(arrays.back()->data());
    }
    reduce(targets.data(), targets.size(), sources.data(), sources.size(), count);
    for (const std::unique_ptr<GuardedBytes>& array : arrays) {
      if (!array->GuardsIntact()) return false;
    }
    for (void* target : targets) {
      if (bytes > 0 && std::memcmp(target, expected.data(), bytes) != 0) return false;
    }
    for (int s = 0; s < source_count; ++s) {
      if (std::find(targets.begin(), targets.end(), sources[s]) != targets.end()) continue;
      if (bytes > 0 && std::memcmp(sources[s], values[s].data(), bytes) != 0) return false;
    }
    return true;
  }

  // EXPECTs that for all numbers of sources and targets, sizes, aliases and alignments. `expected` has the result of so many
  // sources.
  template <typename Reduce, typename ExpectedOf>
  void HoldsForAll(Reduce reduce, DType dtype, const Arrays& values, const ExpectedOf& expected_of) const {
    for (int source_count = 1; source_count <= kSourcesMax; ++source_count) {
      const std::vector<uint8_t> expected = expected_of(source_count);
      for (int target_count = 1; target_count <= kTargetsMax; ++target_count) {
        for (size_t count : kSizes) {
          for (Alias alias : kAliases) {
            for (size_t offset : {0, 5}) {
              ASSERT_TRUE(Holds(reduce, values, source_count, target_count, count * SizeOf(dtype), count, alias, offset,
                                expected))
                  << count << " elements, " << source_count << " sources, " << target_count << " targets, alias "
                  << static_cast<int>(alias) << ", offset " << offset;
            }
          }
        }
      }
    }
  }
};

TEST_P(ReduceManyConformance, EqualsTheReferenceForEveryCountSizeAlignmentAndAlias) {
  std::mt19937_64 random(kSeed);
  for (DType dtype : kAllDTypes) {
    const Arrays values = TestSources(dtype, kSizeMax, random);
    for (ReduceOp op : kAllReduceOps) {
      if (!IsReduction(dtype, op)) continue;
      ASSERT_NO_FATAL_FAILURE(HoldsForAll(ReduceManyOf(dtype, op), dtype, values,
                                          [&](int source_count) { return Expected(dtype, op, values, source_count); }))
          << Name(op) << " of " << Name(dtype) << ", seed " << kSeed;
    }
  }
}

// A third is rounded in every format; of 2^-20 small elements of the narrow formats become subnormal or zero.
TEST_P(ReduceManyConformance, AScaledSumEqualsTheReferenceForEveryCountSizeAlignmentAndAlias) {
  std::mt19937_64 random(kSeed + 4);
  for (DType dtype : kAllDTypes) {
    const ScaledSumFunction sum = ScaledSumOf(dtype);
    if (sum == nullptr) continue;
    const Arrays values = TestSources(dtype, kSizeMax, random);
    for (double factor : {1.0 / 3, -1.0 / (1 << 20)}) {
      const auto scaled_sum = [sum, factor](auto... arguments) { sum(arguments..., factor); };
      ASSERT_NO_FATAL_FAILURE(
          HoldsForAll(scaled_sum, dtype, values,
                      [&](int source_count) { return ExpectedScaled(dtype, values, source_count, factor); }))
          << Name(dtype) << " by " << factor << ", seed " << kSeed + 4;
    }
  }
}

// Many sources: more pointers than registers, and more streams than a processor follows.
TEST_P(ReduceManyConformance, EqualsTheReferenceForManySources) {
  std::mt19937_64 random(kSeed + 1);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF8E5M2, DType::kComplex64}) {
    Arrays values;
    for (int s = 0; s < 67; ++s) values.push_back(TestElements(dtype, kSizeMax, random));
    for (int source_count : {16, 33, 67}) {
      const std::vector<uint8_t> expected = Expected(dtype, ReduceOp::kSum, values, source_count);
      ASSERT_TRUE(Holds(ReduceManyOf(dtype, ReduceOp::kSum), values, source_count, /*target_count=*/2,
                        kSizeMax * SizeOf(dtype), kSizeMax, Alias::kLast, /*offset=*/0, expected))
          << Name(dtype) << ", " << source_count << " sources, seed " << kSeed + 1;
    }
  }
}

// 256 + 1 is 256 in bf16, so rounding at every hop would lose all seven.
TEST_P(ReduceManyConformance, NarrowFloatsAreRoundedOnce) {
  std::vector<uint8_t> large(2 * 100), one(2 * 100), sum(2 * 100);
  for (size_t i = 0; i < 100; ++i) {
    PutCode(large, i, 2, ReferenceEncode(DType::kBF16, 256));
    PutCode(one, i, 2, ReferenceEncode(DType::kBF16, 1));
  }
  std::vector<const void*> sources(kSourcesMax, one.data());
  sources[0] = large.data();
  void* targets[] = {sum.data()};
  ReduceManyOf(DType::kBF16, ReduceOp::kSum)(targets, 1, sources.data(), sources.size(), 100);
  for (size_t i = 0; i < 100; ++i) {
    uint16_t code = 0;
    std::memcpy(&code, &sum[2 * i], 2);
    ASSERT_EQ(ReferenceDecode(DType::kBF16, code), 264) << "element " << i;  // 263 is between 262 and 264
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ReduceManyConformance, testing::ValuesIn(kAllVariants),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace lockstep::kernels
