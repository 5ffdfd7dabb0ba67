// Every variant's combine functions against the reference: dtype x op x size x alignment x aliasing, all pairs of codes
// where a dtype is small enough, and bits beside the arrays left alone. Equal to the reference is equal to each other.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
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

namespace lockstep {
namespace kernels {
namespace {

constexpr uint64_t kSeed = 20240607;
constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 257, 999, 4099};
constexpr size_t kSizeMax = 4099;

enum class Alias { kNone, kLeft, kRight, kBoth };

struct Offsets {
  size_t target;
  size_t left;
  size_t right;
};
constexpr Offsets kOffsets[] = {{0, 0, 0}, {1, 3, 5}, {7, 2, 1}, {4, 4, 6}};

bool IsCombine(DType dtype, ReduceOp op) {
  return op != ReduceOp::kAvg && op != ReduceOp::kPremulSum && IsDefined(dtype, op);
}

std::string Hex(const uint8_t* bytes, size_t count) {
  std::string text;
  for (size_t i = count; i-- > 0;) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

class CombineConformance : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    table_ = TableOf(GetParam());
    if (table_ == nullptr) GTEST_SKIP() << "this processor does not support " << Name(GetParam());
  }

  CombineFunction FunctionOf(DType dtype, ReduceOp op) const {
    return table_->combine[static_cast<int>(dtype)][static_cast<int>(op)];
  }

  // Combines the arrays whole and reports the first wrong element with its operands.
  void ExpectEqualsReference(DType dtype, ReduceOp op, const std::vector<uint8_t>& left,
                             const std::vector<uint8_t>& right) const {
    const size_t size = SizeOf(dtype);
    const size_t count = left.size() / size;
    std::vector<uint8_t> expected(left.size());
    std::vector<uint8_t> actual(left.size());
    ReferenceCombine(dtype, op, expected.data(), left.data(), right.data(), count);
    FunctionOf(dtype, op)(actual.data(), left.data(), right.data(), count);
    if (actual == expected) return;
    for (size_t i = 0; i < count; ++i) {
      const size_t at = i * size;
      ASSERT_EQ(Hex(&actual[at], size), Hex(&expected[at], size))
          << Name(op) << " of " << Name(dtype) << " " << Hex(&left[at], size) << " and " << Hex(&right[at], size);
    }
  }

 private:
  const KernelTable* table_ = nullptr;
};

TEST_P(CombineConformance, HasAFunctionExactlyWhereTheOperationIsDefined) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      EXPECT_EQ(FunctionOf(dtype, op) != nullptr, IsCombine(dtype, op)) << Name(op) << " of " << Name(dtype);
    }
  }
}

TEST_P(CombineConformance, EqualsTheReferenceForEverySizeAlignmentAndAlias) {
  std::mt19937_64 random(kSeed);
  for (DType dtype : kAllDTypes) {
    const size_t size = SizeOf(dtype);
    const std::vector<uint8_t> left = TestElements(dtype, kSizeMax, random);
    const std::vector<uint8_t> right = TestElements(dtype, kSizeMax, random);
    for (ReduceOp op : kAllReduceOps) {
      if (!IsCombine(dtype, op)) continue;
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
            FunctionOf(dtype, op)(target.data(), l.data(), second.data(), count);
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

TEST_P(CombineConformance, DoesNotDependOnTheOrderOfTheOperands) {
  std::mt19937_64 random(kSeed + 1);
  for (DType dtype : kAllDTypes) {
    const std::vector<uint8_t> left = TestElements(dtype, kSizeMax, random);
    const std::vector<uint8_t> right = TestElements(dtype, kSizeMax, random);
    for (ReduceOp op : kAllReduceOps) {
      if (!IsCombine(dtype, op)) continue;
      std::vector<uint8_t> forward(left.size());
      std::vector<uint8_t> backward(left.size());
      FunctionOf(dtype, op)(forward.data(), left.data(), right.data(), kSizeMax);
      FunctionOf(dtype, op)(backward.data(), right.data(), left.data(), kSizeMax);
      EXPECT_EQ(forward, backward) << Name(op) << " of " << Name(dtype) << ", seed " << kSeed + 1;
    }
  }
}

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
      if (!IsCombine(dtype, op)) continue;
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
      if (!IsCombine(dtype, op)) continue;
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

}  // namespace
}  // namespace kernels
}  // namespace lockstep
