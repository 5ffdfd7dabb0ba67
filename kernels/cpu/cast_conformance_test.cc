// Every variant's scalings, casts and divisions against the reference, and the casts against base's scalar conversions.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "base/types/float16.h"
#include "base/types/float8.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"
#include "kernels/reference_testing.h"

namespace lockstep::kernels {
namespace {

constexpr uint64_t kSeed = 20240608;
constexpr size_t kSizes[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 257, 999};
constexpr size_t kSizeMax = 999;
constexpr std::pair<size_t, size_t> kOffsets[] = {{0, 0}, {1, 3}, {7, 2}, {4, 5}};
constexpr double kFactors[] = {1.0, 0.5, 1.0 / 3.0, -2.0, 0.0, 1e-30, 1e30, 1e300, INFINITY, NAN};

std::string CodeAt(const std::vector<uint8_t>& array, size_t index, size_t bytes) {
  uint64_t code = 0;
  std::memcpy(&code, &array[index * bytes], bytes);
  char text[19];
  snprintf(text, sizeof(text), "%0*llx", static_cast<int>(2 * bytes), static_cast<unsigned long long>(code));
  return text;
}

std::vector<uint8_t> AllCodes(DType dtype) {
  const size_t count = size_t{1} << (8 * SizeOf(dtype));
  std::vector<uint8_t> codes(count * SizeOf(dtype));
  for (size_t i = 0; i < count; ++i) PutCode(codes, i, SizeOf(dtype), i);
  return codes;
}

// f32 or f64 numbers on, and one place beside, ties between neighbouring codes of a narrower format: where
// rounding the wrong way, or twice, shows.
std::vector<uint8_t> Ties(DType wide, DType narrow) {
  std::vector<double> values;
  const uint64_t infinity = ReferenceEncode(narrow, INFINITY);
  for (uint64_t code = 0; code < infinity; ++code) {
    // Of many codes, all subnormal ones, all near the overflow, and every fifth, odd and even, between.
    if (code > 1100 && code + 64 < infinity && code % 5 != 0) continue;
    const double below = ReferenceDecode(narrow, code);
    double above = ReferenceDecode(narrow, code + 1);
    // Past the largest: what the next code would be worth were there more exponents.
    if (!std::isfinite(above)) above = 2 * below - ReferenceDecode(narrow, code - 1);
    const double tie = below + (above - below) / 2;
    for (double sign : {1.0, -1.0}) {
      for (double value : {below, tie}) {
        values.push_back(sign * value);
        if (wide == DType::kF64) {
          values.push_back(sign * std::nextafter(value, 0.0));
          values.push_back(sign * std::nextafter(value, INFINITY));
        } else {
          values.push_back(sign * std::nextafterf(static_cast<float>(value), 0.0f));
          values.push_back(sign * std::nextafterf(static_cast<float>(value), INFINITY));
        }
      }
    }
  }
  std::vector<uint8_t> array(values.size() * SizeOf(wide));
  for (size_t i = 0; i < values.size(); ++i) PutCode(array, i, SizeOf(wide), ReferenceEncode(wide, values[i]));
  return array;
}

// Every float32 exponent with mantissas that round in all the ways, and random codes.
std::vector<uint8_t> SampledFloats(std::mt19937_64& random) {
  std::vector<uint32_t> codes;
  for (uint32_t top = 0; top < 512; ++top) {
    for (uint32_t mantissa : {0x000000u, 0x000001u, 0x400000u, 0x7FFFFFu, 0x7FFFFEu, 0x008000u, 0x018000u, 0x007FFFu,
                              0x001000u, 0x003000u, 0x080000u, 0x100000u, 0x300000u}) {
      codes.push_back(top << 23 | mantissa);
    }
    for (int i = 0; i < 64; ++i) codes.push_back(top << 23 | static_cast<uint32_t>(random() & 0x7FFFFF));
  }
  std::vector<uint8_t> array(codes.size() * 4);
  std::memcpy(array.data(), codes.data(), array.size());
  return array;
}

class CastConformance : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    table_ = TableOf(GetParam());
    if (table_ == nullptr) GTEST_SKIP() << "this processor does not support " << Name(GetParam());
  }

  void ExpectCastEqualsReference(DType to, DType from, const std::vector<uint8_t>& source, double factor) const {
    const size_t count = source.size() / SizeOf(from);
    std::vector<uint8_t> expected(count * SizeOf(to));
    std::vector<uint8_t> actual(count * SizeOf(to));
    ReferenceCast(to, expected.data(), from, source.data(), count, factor);
    table_->cast[static_cast<int>(to)][static_cast<int>(from)](actual.data(), source.data(), count, factor);
    if (actual == expected) return;
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(CodeAt(actual, i, SizeOf(to)), CodeAt(expected, i, SizeOf(to)))
          << Name(from) << " " << CodeAt(source, i, SizeOf(from)) << " times " << factor << " to " << Name(to);
    }
  }

  const KernelTable* table_ = nullptr;
};

TEST_P(CastConformance, CastsEveryNarrowCode) {
  for (DType from : kNarrowDTypes) {
    const std::vector<uint8_t> source = AllCodes(from);
    for (DType to : kFloatDTypes) {
      for (double factor : {1.0, 1.0 / 3.0}) {
        ASSERT_NO_FATAL_FAILURE(ExpectCastEqualsReference(to, from, source, factor));
      }
    }
  }
}

TEST_P(CastConformance, CastsTiesOnce) {
  for (DType narrow : kNarrowDTypes) {
    for (DType wide : {DType::kF32, DType::kF64}) {
      ASSERT_NO_FATAL_FAILURE(ExpectCastEqualsReference(narrow, wide, Ties(wide, narrow), 1.0));
    }
  }
}

TEST_P(CastConformance, CastsDoublesToFloatOnce) {
  std::mt19937_64 random(kSeed);
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) {
    // A float32 number or the middle between two, and its neighbours, subnormals of float32 among them.
    const double unit = std::ldexp(1.0, static_cast<int>(random() % 300) - 160);
    const double value = static_cast<double>(random() % (1u << 25)) / (1 << 24) * unit;
    for (double v : {value, std::nextafter(value, 0.0), std::nextafter(value, INFINITY)}) values.push_back(v);
  }
  for (double v : {0x1.fffffep127, 0x1.ffffffp127, std::nextafter(0x1.ffffffp127, 0.0), 0x1p-149, 0x1p-150, 1e308}) {
    values.push_back(v);
    values.push_back(-v);
  }
  std::vector<uint8_t> source(values.size() * 8);
  std::memcpy(source.data(), values.data(), source.size());
  for (DType to : kFloatDTypes) {
    ASSERT_NO_FATAL_FAILURE(ExpectCastEqualsReference(to, DType::kF64, source, 1.0)) << "seed " << kSeed;
  }
}

TEST_P(CastConformance, CastsASampleOfFloats) {
  std::mt19937_64 random(kSeed + 1);
  const std::vector<uint8_t> source = SampledFloats(random);
  for (DType to : kFloatDTypes) {
    for (double factor : {1.0, 1.0 / 3.0}) {
      ASSERT_NO_FATAL_FAILURE(ExpectCastEqualsReference(to, DType::kF32, source, factor)) << "seed " << kSeed + 1;
    }
  }
}

TEST_P(CastConformance, CastsAsBasesConversionsDo) {
  std::mt19937_64 random(kSeed + 2);
  std::vector<uint8_t> source = SampledFloats(random);
  const size_t count = source.size() / 4;
  const auto narrow_all = [&](DType to, auto convert) {
    std::vector<uint8_t> actual(count * SizeOf(to));
    table_->cast[static_cast<int>(to)][static_cast<int>(DType::kF32)](actual.data(), source.data(), count, 1.0);
    std::vector<uint8_t> expected(actual.size());
    for (size_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, &source[i * 4], 4);
      PutCode(expected, i, SizeOf(to), convert(value));
    }
    EXPECT_EQ(actual, expected) << Name(to);
  };
  narrow_all(DType::kF16, [](float value) { return Float16(value).bits(); });
  narrow_all(DType::kBF16, [](float value) { return BFloat16(value).bits(); });
  narrow_all(DType::kF8E4M3, [](float value) { return Float8E4M3(value).bits(); });
  narrow_all(DType::kF8E5M2, [](float value) { return Float8E5M2(value).bits(); });

  const auto widen_all = [&](DType from, auto convert) {
    const std::vector<uint8_t> codes = AllCodes(from);
    const size_t all = codes.size() / SizeOf(from);
    std::vector<float> actual(all);
    table_->cast[static_cast<int>(DType::kF32)][static_cast<int>(from)](actual.data(), codes.data(), all, 1.0);
    for (size_t i = 0; i < all; ++i) {
      const float expected = convert(static_cast<uint16_t>(i));
      ASSERT_EQ(std::memcmp(&actual[i], &expected, 4), 0) << Name(from) << " code " << i;
    }
  };
  widen_all(DType::kF16, [](uint16_t code) { return static_cast<float>(Float16::FromBits(code)); });
  widen_all(DType::kBF16, [](uint16_t code) { return static_cast<float>(BFloat16::FromBits(code)); });
  widen_all(DType::kF8E4M3, [](uint16_t code) { return static_cast<float>(Float8E4M3::FromBits(code & 0xFF)); });
  widen_all(DType::kF8E5M2, [](uint16_t code) { return static_cast<float>(Float8E5M2::FromBits(code & 0xFF)); });
}

TEST_P(CastConformance, EqualsTheReferenceForEverySizeAndAlignmentAndInPlace) {
  std::mt19937_64 random(kSeed + 3);
  for (DType from : kFloatDTypes) {
    const std::vector<uint8_t> source = TestElements(from, kSizeMax, random);
    for (DType to : kFloatDTypes) {
      const ScaleFunction cast = table_->cast[static_cast<int>(to)][static_cast<int>(from)];
      for (double factor : kFactors) {
        ASSERT_NO_FATAL_FAILURE(ExpectCastEqualsReference(to, from, source, factor)) << "seed " << kSeed + 3;
      }
      std::vector<uint8_t> expected(kSizeMax * SizeOf(to));
      ReferenceCast(to, expected.data(), from, source.data(), kSizeMax, 0.75);
      for (size_t count : kSizes) {
        for (const auto& [target_offset, source_offset] : kOffsets) {
          for (bool in_place : {false, true}) {
            if (in_place && SizeOf(to) != SizeOf(from)) continue;
            GuardedBytes s(count * SizeOf(from), source_offset);
            GuardedBytes t(count * SizeOf(to), target_offset);
            s.Fill(source.data());
            GuardedBytes& target = in_place ? s : t;
            cast(target.data(), s.data(), count, 0.75);
            ASSERT_TRUE(std::memcmp(target.data(), expected.data(), count * SizeOf(to)) == 0 && s.GuardsIntact() &&
                        t.GuardsIntact())
                << Name(from) << " to " << Name(to) << ", " << count << " elements, offsets " << target_offset << ", "
                << source_offset << (in_place ? ", in place" : "");
          }
        }
      }
    }
  }
}

TEST_P(CastConformance, ScalesEveryDTypeThatHasFractions) {
  std::mt19937_64 random(kSeed + 4);
  for (DType dtype : kAllDTypes) {
    const ScaleFunction scale = table_->cast[static_cast<int>(dtype)][static_cast<int>(dtype)];
    ASSERT_EQ(scale != nullptr, IsFloat(dtype) || IsComplex(dtype)) << Name(dtype);
    if (scale == nullptr) continue;
    const size_t size = SizeOf(dtype);
    const std::vector<uint8_t> source = TestElements(dtype, kSizeMax, random);
    for (double factor : kFactors) {
      std::vector<uint8_t> expected(source.size());
      ReferenceScale(dtype, expected.data(), source.data(), kSizeMax, factor);
      for (size_t count : kSizes) {
        for (bool in_place : {false, true}) {
          GuardedBytes s(count * size, 3);
          GuardedBytes t(count * size, 1);
          s.Fill(source.data());
          GuardedBytes& target = in_place ? s : t;
          scale(target.data(), s.data(), count, factor);
          ASSERT_TRUE(std::memcmp(target.data(), expected.data(), count * size) == 0 && s.GuardsIntact() &&
                      t.GuardsIntact())
              << Name(dtype) << " times " << factor << ", " << count << " elements" << (in_place ? ", in place" : "");
        }
      }
    }
  }
}

TEST_P(CastConformance, DividesIntegersTowardZero) {
  std::mt19937_64 random(kSeed + 5);
  for (DType dtype : kAllDTypes) {
    const DivideFunction divide = table_->divide[static_cast<int>(dtype)];
    ASSERT_EQ(divide != nullptr, IsInteger(dtype)) << Name(dtype);
    if (divide == nullptr) continue;
    const size_t size = SizeOf(dtype);
    const std::vector<uint8_t> source = TestElements(dtype, kSizeMax, random);
    for (int64_t divisor :
         {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{8}, int64_t{127}, int64_t{255}, int64_t{256},
          int64_t{65537}, int64_t{1} << 31, (int64_t{1} << 32) + 1, std::numeric_limits<int64_t>::max()}) {
      std::vector<uint8_t> expected = source;
      ReferenceDivideTowardZero(dtype, expected.data(), kSizeMax, divisor);
      for (size_t count : {size_t{0}, size_t{1}, size_t{17}, size_t{64}, kSizeMax}) {
        GuardedBytes data(count * size, 5);
        data.Fill(source.data());
        divide(data.data(), count, divisor);
        ASSERT_TRUE(std::memcmp(data.data(), expected.data(), count * size) == 0 && data.GuardsIntact())
            << Name(dtype) << " / " << divisor << ", " << count << " elements, seed " << kSeed + 5;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, CastConformance, testing::ValuesIn(kAllVariants),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace lockstep::kernels
