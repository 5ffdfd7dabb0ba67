// What cast.h, check.h and fill.h promise, on any rig: instantiate ArrayConformance with a MakeTestRig.

#ifndef KERNELS_CUDA_ARRAY_CONFORMANCE_H_
#define KERNELS_CUDA_ARRAY_CONFORMANCE_H_

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/kernel_conformance.h"
#include "kernels/cuda/rig_testing.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class ArrayConformance : public KernelConformance {
 protected:
  // All codes of a narrow dtype; of others, besides what tests of arrays take, numbers near those of narrow dtypes and
  // halfway between two of them, where rounding decides.
  Bytes TellingElements(DType dtype) {
    const size_t size = SizeOf(dtype);
    Bytes elements;
    const auto add = [&](uint64_t code) {
      elements.resize(elements.size() + size);
      std::memcpy(elements.data() + elements.size() - size, &code, size);
    };
    if (size <= 2) {
      for (uint64_t code = 0; code >> (8 * size) == 0; ++code) add(code);
      return elements;
    }
    for (const DType narrow : kNarrowDTypes) {
      const uint64_t codes = uint64_t{1} << (8 * SizeOf(narrow));
      const uint64_t step = codes > 256 ? 7 : 1;
      for (uint64_t code = 0; code + 1 < codes; code += step) {
        const double here = ReferenceDecode(narrow, code);
        const double middle = here + (ReferenceDecode(narrow, code + 1) - here) / 2;
        const uint64_t at = ReferenceEncode(dtype, middle);
        for (const uint64_t near : {at - 1, at, at + 1}) add(near);
      }
    }
    const Bytes others = TestElements(dtype, 5000, random_);
    elements.insert(elements.end(), others.begin(), others.end());
    return elements;
  }

  uint64_t* Counter(uint64_t initial) {
    auto* const counter = reinterpret_cast<uint64_t*>(rig_->Allocate(sizeof(initial)));
    EXPECT_THAT(rig_->Write(counter, &initial, sizeof(initial)), IsOk());
    return counter;
  }
  uint64_t ReadCounter(const uint64_t* counter) {
    uint64_t value = 0;
    EXPECT_THAT(rig_->Read(&value, counter, sizeof(value)), IsOk());
    return value;
  }

  // At so many bytes behind a boundary.
  void Casts(DType to, size_t to_offset, DType from, size_t from_offset, size_t count) {
    SCOPED_TRACE(testing::Message() << count << " of " << Name(from) << " at " << from_offset << " to " << Name(to)
                                    << " at " << to_offset);
    rig_->Reset();
    const Bytes source = TestElements(from, count, random_);
    const DeviceBytes on_device(*rig_, source, from_offset);
    const DeviceBytes target(*rig_, Bytes(count * SizeOf(to), 0x55), to_offset);
    ASSERT_THAT(internal::CastScaled(to, target.data(), from, on_device.data(), count, 0.5, nullptr, executor()),
                IsOk());
    ExpectSameBytes(target.Read(), ConvertedByReference(to, from, source.data(), count, 0.5), SizeOf(to));
    EXPECT_TRUE(target.GuardsIntact());
  }

  static bool IsFiniteAt(DType dtype, const Bytes& elements, size_t index) {
    uint64_t code = 0;
    std::memcpy(&code, elements.data() + index * SizeOf(dtype), SizeOf(dtype));
    return std::isfinite(ReferenceDecode(dtype, code));
  }
};

TEST_P(ArrayConformance, CastsEveryFloatToEveryOtherAndCountsWhatSaturates) {
  for (const DType from : kFloatDTypes) {
    const Bytes source = TellingElements(from);
    const size_t count = source.size() / SizeOf(from);
    for (const DType to : kFloatDTypes) {
      for (const double factor : {1.0, 0.125, 1.0 / 3, -3e4, 1e-7, 1e300, static_cast<double>(NAN)}) {
        SCOPED_TRACE(testing::Message() << Name(from) << " to " << Name(to) << " times " << factor);
        rig_->Reset();
        const Bytes expected = ConvertedByReference(to, from, source.data(), count, factor);
        const DeviceBytes on_device(*rig_, source, 0);
        const DeviceBytes target(*rig_, Bytes(expected.size(), 0x55), 0);
        ASSERT_THAT(internal::CastScaled(to, target.data(), from, on_device.data(), count, factor, nullptr, executor()),
                    IsOk());
        ExpectSameBytes(target.Read(), expected, SizeOf(to));
        // Again, counting.
        uint64_t saturated = 1000;
        uint64_t* const counter = Counter(saturated);
        for (size_t i = 0; i < count; ++i) {
          saturated += IsFiniteAt(from, source, i) && !IsFiniteAt(to, expected, i) ? 1 : 0;
        }
        ASSERT_THAT(internal::CastScaled(to, target.data(), from, on_device.data(), count, factor, counter, executor()),
                    IsOk());
        ExpectSameBytes(target.Read(), expected, SizeOf(to));
        EXPECT_EQ(ReadCounter(counter), saturated);
      }
    }
  }
}

TEST_P(ArrayConformance, CastsArraysOfAnySizeAndAlignment) {
  for (const DType from : kFloatDTypes) {
    for (const DType to : kFloatDTypes) {
      for (const size_t count : kSizes) Casts(to, AnyOffset(to), from, AnyOffset(from), count);
      for (const size_t to_offset : AllOffsets(SizeOf(to))) {
        for (const size_t from_offset : AllOffsets(SizeOf(from))) Casts(to, to_offset, from, from_offset, 101);
      }
    }
  }
}

TEST_P(ArrayConformance, CastsInPlaceBetweenDTypesOfOneSize) {
  for (const DType from : kFloatDTypes) {
    for (const DType to : kFloatDTypes) {
      if (SizeOf(to) != SizeOf(from)) continue;
      for (const size_t count : {1, 257, 10001}) {
        for (const size_t offset : AllOffsets(SizeOf(to))) {
          SCOPED_TRACE(testing::Message() << count << " of " << Name(from) << " to " << Name(to) << ", " << offset);
          rig_->Reset();
          const Bytes source = TestElements(from, count, random_);
          const DeviceBytes array(*rig_, source, offset);
          ASSERT_THAT(internal::CastScaled(to, array.data(), from, array.data(), count, 2, nullptr, executor()),
                      IsOk());
          ExpectSameBytes(array.Read(), ConvertedByReference(to, from, source.data(), count, 2), SizeOf(to));
          EXPECT_TRUE(array.GuardsIntact());
        }
      }
    }
  }
}

TEST_P(ArrayConformance, RefusesArraysThatOverlapOtherwiseThanExactly) {
  rig_->Reset();
  constexpr size_t kCount = 64;
  char* const memory = rig_->Allocate(1024);
  char* const middle = memory + 512;
  const auto overlap = StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("overlaps a source"));
  for (const DType from : kFloatDTypes) {
    for (const DType to : kFloatDTypes) {
      SCOPED_TRACE(Name(from) + " to " + Name(to));
      const auto cast = [&](char* target, const char* source) {
        return internal::CastScaled(to, target, from, source, kCount, 0.5, nullptr, executor());
      };
      const size_t to_bytes = kCount * SizeOf(to);
      const size_t from_bytes = kCount * SizeOf(from);
      EXPECT_THAT(cast(middle + from_bytes, middle), IsOk());
      EXPECT_THAT(cast(middle + from_bytes - SizeOf(to), middle), overlap);
      EXPECT_THAT(cast(middle - to_bytes, middle), IsOk());
      EXPECT_THAT(cast(middle - to_bytes + SizeOf(to), middle), overlap);
      if (to_bytes == from_bytes) continue;
      EXPECT_THAT(cast(middle, middle), overlap);
    }
  }
}

TEST_P(ArrayConformance, CastRefusesWhatTheHostRefuses) {
  rig_->Reset();
  char* const memory = rig_->Allocate(64);
  const auto cast = [&](DType to, void* target, DType from, double factor, uint64_t* saturated = nullptr) {
    return internal::CastScaled(to, target, from, memory, 1, factor, saturated, executor());
  };
  using absl::StatusCode;
  using testing::HasSubstr;
  EXPECT_THAT(cast(DType::kI32, memory, DType::kF32, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("f32 to i32")));
  EXPECT_THAT(cast(DType::kI32, memory, DType::kI32, 2),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("scale i32")));
  EXPECT_THAT(cast(DType::kF32, memory + 2, DType::kF16, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not aligned to 4 bytes")));
  EXPECT_THAT(cast(DType::kI32, memory, DType::kI32, 1, reinterpret_cast<uint64_t*>(memory)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("infinite in i32")));
}

TEST_P(ArrayConformance, CountsWhatIsNotFinite) {
  for (const DType dtype : kAllDTypes) {
    if (!IsFloat(dtype) && !IsComplex(dtype)) {
      EXPECT_THAT(internal::CountNonFinite(dtype, nullptr, 0, nullptr, executor()),
                  StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(Name(dtype))));
      continue;
    }
    const DType part = RealOf(dtype);
    for (const size_t count : kSizes) {
      const Bytes source = TestElements(dtype, count, random_);
      constexpr uint64_t kBefore = 5;
      uint64_t expected = kBefore;
      for (size_t i = 0; i < source.size() / SizeOf(part); ++i) expected += IsFiniteAt(part, source, i) ? 0 : 1;
      for (const size_t offset : OffsetsFor(count, SizeOf(part))) {
        SCOPED_TRACE(testing::Message() << count << " of " << Name(dtype) << " at " << offset);
        rig_->Reset();
        uint64_t* const counter = Counter(kBefore);
        const DeviceBytes array(*rig_, source, offset);
        ASSERT_THAT(internal::CountNonFinite(dtype, array.data(), count, counter, executor()), IsOk());
        EXPECT_EQ(ReadCounter(counter), expected);
      }
    }
  }
}

TEST_P(ArrayConformance, FillsArraysOfEveryDType) {
  for (const DType dtype : kAllDTypes) {
    for (const double value : {0.0, 1.0}) {
      for (const size_t count : kSizes) {
        const DType part = RealOf(dtype);
        const uint64_t code = IsFloat(part) ? ReferenceEncode(part, value) : static_cast<uint64_t>(value);
        Bytes expected(count * SizeOf(dtype));
        for (size_t i = 0; i < count; ++i) std::memcpy(expected.data() + i * SizeOf(dtype), &code, SizeOf(part));
        for (const size_t offset : OffsetsFor(count, SizeOf(dtype))) {
          SCOPED_TRACE(testing::Message() << count << " of " << Name(dtype) << " at " << offset);
          rig_->Reset();
          const DeviceBytes array(*rig_, Bytes(expected.size(), 0x55), offset);
          ASSERT_THAT(internal::Fill(dtype, array.data(), count, value, executor()), IsOk());
          ExpectSameBytes(array.Read(), expected, SizeOf(dtype));
          EXPECT_TRUE(array.GuardsIntact());
        }
      }
    }
  }
}

TEST_P(ArrayConformance, FillTakesTheEndsOfIntegersAndRefusesWhatIsBeyond) {
  const auto fill = [&](DType dtype, double value) {
    rig_->Reset();
    return internal::Fill(dtype, rig_->Allocate(16), 1, value, executor());
  };
  EXPECT_THAT(fill(DType::kI8, -128), IsOk());
  EXPECT_THAT(fill(DType::kU64, 0x1p63), IsOk());
  for (const auto& refused : std::vector<std::pair<DType, double>>{{DType::kBool, 2},
                                                                   {DType::kU8, -1},
                                                                   {DType::kU8, 256},
                                                                   {DType::kI8, 128},
                                                                   {DType::kI32, 0.5},
                                                                   {DType::kI64, 0x1p63},
                                                                   {DType::kU64, 0x1p64},
                                                                   {DType::kU32, NAN}}) {
    EXPECT_THAT(fill(refused.first, refused.second),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("cannot fill an array of")))
        << Name(refused.first) << " with " << refused.second;
  }
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_ARRAY_CONFORMANCE_H_
