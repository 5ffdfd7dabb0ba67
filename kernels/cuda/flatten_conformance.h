// What flatten.h promises, on any rig: instantiate FlattenConformance with a MakeTestRig. Skips where that answers UNAVAILABLE.
//
// Pieces of random sizes and alignments, with gaps between them, from arrays that are poisoned around them; the outcome
// is compared, gaps included, with kernels/reference_testing.h, which shares nothing with what it judges.

#ifndef KERNELS_CUDA_FLATTEN_CONFORMANCE_H_
#define KERNELS_CUDA_FLATTEN_CONFORMANCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cpu/flatten.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/flatten.h"
#include "kernels/cuda/rig_testing.h"
#include "kernels/hash_word.h"
#include "kernels/reference_testing.h"

namespace lockstep::kernels::cuda {

using Bytes = std::vector<uint8_t>;

// Around vectors, units of blocks and blocks.
inline constexpr size_t kSizes[] = {0, 1, 2, 3, 15, 16, 17, 64, 255, 257, 1000, 1024, 4095, 4096, 4097, 16383, 20000};

// How kernels/cpu/cast.h defines a conversion: from a dtype to itself by a factor of 1, the bits stay.
inline Bytes ConvertedByReference(DType to, DType from, const uint8_t* source, size_t count, double factor) {
  Bytes target(count * SizeOf(to));
  if (to == from && factor == 1) {
    std::copy(source, source + target.size(), target.begin());
  } else if (IsComplex(to)) {
    ReferenceScale(to, target.data(), source, count, factor);
  } else {
    ReferenceCast(to, target.data(), from, source, count, factor);
  }
  return target;
}

class FlattenConformance : public testing::TestWithParam<MakeTestRig> {
 protected:
  void SetUp() override {
    auto rig = GetParam()();
    if (absl::IsUnavailable(rig.status())) GTEST_SKIP() << rig.status();
    ASSERT_THAT(rig.status(), IsOk());
    rig_ = *std::move(rig);
    const uint32_t seed = std::random_device()();
    random_.seed(seed);
    // Shown with every failure.
    trace_ = std::make_unique<testing::ScopedTrace>(__FILE__, __LINE__, "seed " + std::to_string(seed));
  }

  Executor& executor() { return rig_->executor(); }
  size_t Below(size_t end) { return random_() % end; }

  // Where an array may begin between two boundaries of vectors, in bytes: all multiples of `unit`.
  static std::vector<size_t> AllOffsets(size_t unit) {
    std::vector<size_t> offsets;
    for (size_t offset = 0; offset < kVectorBytes; offset += unit) offsets.push_back(offset);
    return offsets;
  }
  // Any of them, of arrays that are aligned to their elements or, if these are complex, to parts of them.
  size_t AnyOffset(DType dtype) { return PartBytes(dtype) * Below(kVectorBytes / PartBytes(dtype)); }
  static size_t PartBytes(DType dtype) { return SizeOf(dtype) / (IsComplex(dtype) ? 2 : 1); }

  TensorView DeviceView(void* data, DType dtype, const std::vector<int64_t>& shape,
                        const std::vector<int64_t>& strides = {}) {
    auto view = TensorView::Create(data, dtype, shape, strides, executor().device());
    EXPECT_THAT(view.status(), IsOk());
    return *std::move(view);
  }

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

  // Pieces laid out in an array of their own and in a flat one, with gaps in both.
  struct Layout {
    std::vector<size_t> counts;
    std::vector<size_t> begins;   // in the pieces' array, in elements
    std::vector<size_t> offsets;  // in the flat array
    size_t pieces_elements = 0;
    size_t flat_elements = 0;
  };

  // Half of the pieces begin at a multiple of `boundary` elements, where vectors may.
  Layout RandomLayout(size_t pieces, size_t count_max, size_t boundary = 64) {
    Layout layout;
    for (size_t i = 0; i < pieces; ++i) {
      const size_t size = kSizes[Below(sizeof(kSizes) / sizeof(kSizes[0]))];
      layout.counts.push_back(std::min(size, count_max));
      const auto gap = [&](size_t end) {
        return Below(2) == 0 ? (end + boundary - 1) / boundary * boundary : end + Below(16);
      };
      layout.begins.push_back(gap(layout.pieces_elements));
      layout.offsets.push_back(gap(layout.flat_elements));
      layout.pieces_elements = layout.begins.back() + layout.counts.back();
      layout.flat_elements = layout.offsets.back() + layout.counts.back();
    }
    return layout;
  }

  std::vector<TensorView> Views(const Layout& layout, char* data, DType dtype) {
    std::vector<TensorView> views;
    for (size_t i = 0; i < layout.counts.size(); ++i) {
      views.push_back(
          DeviceView(data + layout.begins[i] * SizeOf(dtype), dtype, {static_cast<int64_t>(layout.counts[i])}));
    }
    return views;
  }

  static std::vector<BucketPiece> Pieces(const Layout& layout, const std::vector<TensorView>& views) {
    std::vector<BucketPiece> pieces;
    for (size_t i = 0; i < views.size(); ++i) pieces.push_back({&views[i], layout.offsets[i]});
    return pieces;
  }

  absl::Status Run(bool to_flat, absl::Span<const BucketPiece> pieces, void* flat, DType flat_dtype, double factor) {
    return to_flat ? internal::FlattenViews(pieces, {}, flat, flat_dtype, factor, executor())
                   : internal::UnflattenViews(pieces, flat, flat_dtype, factor, nullptr, executor());
  }

  // The arrays of pieces and the flat one begin so many bytes behind a boundary.
  struct Offsets {
    size_t pieces;
    size_t flat;
  };

  // Flattens, or unflattens, and EXPECTs what the reference makes of each piece, and nothing beside it.
  void Transfers(bool to_flat, DType to, DType from, double factor, const Layout& layout, const Offsets& offsets) {
    SCOPED_TRACE(testing::Message() << (to_flat ? "flatten " : "unflatten ") << Name(from) << " to " << Name(to)
                                    << " times " << factor << ", " << layout.counts.size() << " pieces, "
                                    << offsets.pieces << " and " << offsets.flat << " B");
    rig_->Reset();
    const std::vector<size_t>& source_begins = to_flat ? layout.begins : layout.offsets;
    const std::vector<size_t>& target_begins = to_flat ? layout.offsets : layout.begins;
    const Bytes contents = TestElements(from, to_flat ? layout.pieces_elements : layout.flat_elements, random_);
    Bytes expected = TestElements(to, to_flat ? layout.flat_elements : layout.pieces_elements, random_);
    const DeviceBytes source(*rig_, contents, to_flat ? offsets.pieces : offsets.flat);
    const DeviceBytes target(*rig_, expected, to_flat ? offsets.flat : offsets.pieces);
    const std::vector<TensorView> views =
        to_flat ? Views(layout, source.data(), from) : Views(layout, target.data(), to);
    ASSERT_THAT(Run(to_flat, Pieces(layout, views), (to_flat ? target : source).data(), to_flat ? to : from, factor),
                IsOk());
    for (size_t i = 0; i < views.size(); ++i) {
      const Bytes piece =
          ConvertedByReference(to, from, contents.data() + source_begins[i] * SizeOf(from), layout.counts[i], factor);
      std::copy(piece.begin(), piece.end(), expected.begin() + target_begins[i] * SizeOf(to));
    }
    ExpectSameBytes(target.Read(), expected, SizeOf(to));
    EXPECT_TRUE(target.GuardsIntact());
    ExpectSameBytes(source.Read(), contents, SizeOf(from));
  }
  // At any alignment.
  void BothWays(DType to, DType from, double factor, const Layout& layout) {
    Transfers(/*to_flat=*/true, to, from, factor, layout, {AnyOffset(from), AnyOffset(to)});
    Transfers(/*to_flat=*/false, to, from, factor, layout, {AnyOffset(to), AnyOffset(from)});
  }

  struct Conversion {
    DType to;
    DType from;
    double factor;
  };

  // All that exist: between floats, of complex numbers by a factor, and what is only moved.
  static std::vector<Conversion> Conversions() {
    std::vector<Conversion> conversions;
    for (const DType to : kFloatDTypes) {
      for (const DType from : kFloatDTypes) conversions.push_back({to, from, 1.0 / 3});
    }
    for (const DType dtype : {DType::kComplex64, DType::kComplex128}) conversions.push_back({dtype, dtype, 0.25});
    for (const DType dtype : kAllDTypes) conversions.push_back({dtype, dtype, 1});
    return conversions;
  }

  // Views that are their ranges of the flat array, which is read as `from` and written as `to`.
  void ConvertsInPlace(const Conversion& conversion, bool to_flat, size_t offset) {
    SCOPED_TRACE(testing::Message() << Name(conversion.from) << " to " << Name(conversion.to) << " times "
                                    << conversion.factor << (to_flat ? ", flatten at " : ", unflatten at ") << offset);
    rig_->Reset();
    const size_t size = SizeOf(conversion.to);
    Layout layout;
    layout.counts = {101, 5000, 1};
    layout.begins = layout.offsets = {3, 107, 5120};
    const Bytes source = TestElements(conversion.from, 5200, random_);
    const DeviceBytes flat(*rig_, source, offset);
    const std::vector<TensorView> views = Views(layout, flat.data(), to_flat ? conversion.from : conversion.to);
    Bytes expected = source;
    for (size_t i = 0; i < layout.counts.size(); ++i) {
      const size_t begin = layout.offsets[i] * size;
      const Bytes piece = ConvertedByReference(conversion.to, conversion.from, source.data() + begin, layout.counts[i],
                                               conversion.factor);
      std::copy(piece.begin(), piece.end(), expected.begin() + begin);
    }
    const DType flat_dtype = to_flat ? conversion.to : conversion.from;
    ASSERT_THAT(Run(to_flat, Pieces(layout, views), flat.data(), flat_dtype, conversion.factor), IsOk());
    ExpectSameBytes(flat.Read(), expected, size);
    EXPECT_TRUE(flat.GuardsIntact());
  }

  std::unique_ptr<TestRig> rig_;
  std::mt19937_64 random_;

 private:
  std::unique_ptr<testing::ScopedTrace> trace_;
};

// Every code of narrow dtypes, and numbers around which conversions to them round, by factors that overflow and vanish.
TEST_P(FlattenConformance, EveryFloatBecomesEveryOther) {
  for (const DType from : kFloatDTypes) {
    const Bytes source = TellingElements(from);
    const size_t count = source.size() / SizeOf(from);
    for (const DType to : kFloatDTypes) {
      for (const double factor : {1.0, 0.125, 1.0 / 3, -3e4, 1e-7, 1e300, static_cast<double>(NAN)}) {
        SCOPED_TRACE(testing::Message() << Name(from) << " to " << Name(to) << " times " << factor);
        rig_->Reset();
        const DeviceBytes on_device(*rig_, source, 0);
        const DeviceBytes flat(*rig_, Bytes(count * SizeOf(to), 0x55), 0);
        const TensorView view = DeviceView(on_device.data(), from, {static_cast<int64_t>(count)});
        const BucketPiece piece = {&view};
        ASSERT_THAT(internal::FlattenViews({&piece, 1}, {}, flat.data(), to, factor, executor()), IsOk());
        ExpectSameBytes(flat.Read(), ConvertedByReference(to, from, source.data(), count, factor), SizeOf(to));
      }
    }
  }
}

TEST_P(FlattenConformance, BothWaysOfEveryConversion) {
  for (const Conversion& conversion : Conversions()) {
    BothWays(conversion.to, conversion.from, conversion.factor, RandomLayout(30, 20000));
  }
}

TEST_P(FlattenConformance, LargePiecesInSeveralBlocks) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    Layout layout;
    layout.counts = {3000001, 1 << 20, 5};
    layout.begins = {1, 3000064, 5000000};
    layout.offsets = {3, 3000128, 5000001};
    layout.pieces_elements = layout.flat_elements = 5000010;
    BothWays(dtype, DType::kF32, 0.5, layout);
    BothWays(DType::kF32, dtype, 0.5, layout);
  }
}

// Sizes around words, warps and blocks, at every alignment, are hashed as kernels/hash_word.h says, and are added to what is there.
TEST_P(FlattenConformance, HashesEveryByteWhereverItIs) {
  for (const size_t bytes : {0, 1, 7, 8, 9, 255, 2048, 32767, 32768, 32769, 200003}) {
    for (const size_t offset : {0, 1, 4, 8, 13}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes at " << offset);
      rig_->Reset();
      const Bytes source = TestElements(DType::kU8, bytes, random_);
      const uint64_t first_word = random_();
      uint64_t sum = random_();
      Bytes sum_before(sizeof(sum));
      std::memcpy(sum_before.data(), &sum, sizeof(sum));
      for (size_t begin = 0; begin < bytes; begin += 8) {
        uint64_t word = 0;
        for (size_t b = 0; b < 8 && begin + b < bytes; ++b) word += uint64_t{source[begin + b]} << (8 * b);
        sum += HashWord(word, first_word + begin / 8);
      }
      const DeviceBytes on_device(*rig_, source, offset);
      const DeviceBytes hashed(*rig_, sum_before, 0);
      auto* const target = reinterpret_cast<uint64_t*>(hashed.data());
      ASSERT_THAT(internal::Hash(on_device.data(), bytes, first_word, target, executor()), IsOk());
      uint64_t found = 0;
      std::memcpy(&found, hashed.Read().data(), sizeof(found));
      EXPECT_EQ(found, sum);
    }
  }
}

// Zeros where there is no view, and values that are written in the same launch.
TEST_P(FlattenConformance, ZerosAndValuesGoAlong) {
  for (const DType to : kFloatAndComplexDTypes) {
    for (const size_t values : {1, 4, 5, 300, 1500}) {
      SCOPED_TRACE(testing::Message() << Name(to) << ", " << values << " values");
      rig_->Reset();
      const DType from = IsComplex(to) ? to : DType::kF32;
      constexpr size_t kCount = 5000;
      constexpr size_t kTrailer = 2 * kCount + 3;
      const Bytes source = TestElements(from, kCount, random_);
      Bytes expected = TestElements(to, kTrailer + values + 10, random_);
      const DeviceBytes on_device(*rig_, source, 0);
      const DeviceBytes flat(*rig_, expected, 0);
      const TensorView view = DeviceView(on_device.data(), from, {kCount});
      const BucketPiece pieces[] = {
          {nullptr, 1, kCount - 1}, {&view, kCount}, {nullptr, 2 * kCount + 1}};  // the last: no zeros
      std::vector<BucketEntry> entries;
      for (size_t i = 0; i < values; ++i) entries.push_back({kTrailer + values - i, static_cast<float>(i % 5)});
      ASSERT_THAT(internal::FlattenViews(pieces, entries, flat.data(), to, 1, executor()), IsOk());

      const size_t size = SizeOf(to);
      std::fill_n(expected.begin() + size, (kCount - 1) * size, 0);
      const Bytes piece = ConvertedByReference(to, from, source.data(), kCount, 1);
      std::copy(piece.begin(), piece.end(), expected.begin() + kCount * size);
      for (const BucketEntry& entry : entries) {
        uint8_t* const target = expected.data() + entry.index * size;
        std::fill_n(target, size, 0);
        const DType real = RealOf(to);
        ReferenceCast(real, target, DType::kF32, &entry.value, 1, 1);
      }
      ExpectSameBytes(flat.Read(), expected, size);
      EXPECT_TRUE(flat.GuardsIntact());
    }
  }
}

// Of views with gaps, of any rank, beside dense ones of several dtypes. What the host's FlattenViews makes of the same
// views is the reference here: it defines their order.
TEST_P(FlattenConformance, StridedViewsOfSeveralDTypes) {
  struct Shape {
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
  };
  const std::vector<Shape> shapes = {
      {{5, 7}, {8, 1}},                  // rows with gaps
      {{7, 5}, {1, 8}},                  // their columns
      {{3, 1, 4, 5}, {100, 77, 20, 2}},  // a dimension of one; every other element
      {{64, 3, 7, 7}, {147, 1, 21, 3}},  // channels last: dense
      {{2, 3, 4}, {12, 4, 1}},           // contiguous
      {{1000, 33}, {40, 1}},             // more than a block
      {{0, 4}, {9, 1}},                  // nothing
      {std::vector<int64_t>(32, 1), std::vector<int64_t>(32, 5)},
      {{2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, {8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 6, 2}},
  };
  for (const DType flat_dtype : {DType::kF32, DType::kF16, DType::kComplex128, DType::kU8}) {
    for (const bool to_flat : {true, false}) {
      SCOPED_TRACE(testing::Message() << Name(flat_dtype) << (to_flat ? " flatten" : " unflatten"));
      rig_->Reset();
      std::vector<Bytes> contents;
      std::vector<std::unique_ptr<DeviceBytes>> arrays;
      std::vector<TensorView> views;
      std::vector<TensorView> host_views;
      std::vector<size_t> offsets;
      size_t flat_elements = 3;
      constexpr size_t kViews = 90;
      contents.reserve(kViews);
      for (size_t i = 0; i < kViews; ++i) {
        const Shape& shape = shapes[i % shapes.size()];
        const DType dtype = IsFloat(flat_dtype) ? kFloatDTypes[Below(std::size(kFloatDTypes))] : flat_dtype;
        contents.push_back(TestElements(dtype, 42000, random_));
        arrays.push_back(std::make_unique<DeviceBytes>(*rig_, contents.back(), AnyOffset(dtype)));
        views.push_back(DeviceView(arrays.back()->data(), dtype, shape.shape, shape.strides));
        auto host_view = TensorView::Create(contents.back().data(), dtype, shape.shape, shape.strides, DeviceId());
        ASSERT_THAT(host_view.status(), IsOk());
        host_views.push_back(*host_view);
        offsets.push_back(flat_elements);
        flat_elements += views.back().elements() + Below(3);
      }
      Bytes expected = TestElements(flat_dtype, flat_elements, random_);
      const DeviceBytes flat(*rig_, expected, 0);
      std::vector<BucketPiece> pieces;
      std::vector<kernels::ViewPiece> host_pieces;
      for (size_t i = 0; i < kViews; ++i) {
        pieces.push_back({&views[i], offsets[i]});
        host_pieces.push_back({&host_views[i], offsets[i]});
      }
      const double factor = flat_dtype == DType::kU8 ? 1 : 0.75;
      ASSERT_THAT(Run(to_flat, pieces, flat.data(), flat_dtype, factor), IsOk());
      ASSERT_THAT(to_flat ? kernels::FlattenViews(host_pieces, expected.data(), flat_dtype, factor)
                          : kernels::UnflattenViews(host_pieces, expected.data(), flat_dtype, factor),
                  IsOk());
      ExpectSameBytes(flat.Read(), expected, SizeOf(flat_dtype));
      for (size_t i = 0; i < kViews; ++i) {
        SCOPED_TRACE(views[i].ToString());
        ExpectSameBytes(arrays[i]->Read(), contents[i], SizeOf(views[i].dtype()));
      }
    }
  }
}

// Around what one block of arguments holds, and many of them.
TEST_P(FlattenConformance, AnyNumberOfPiecesOfEveryConversion) {
  for (const Conversion& conversion : Conversions()) {
    for (const size_t pieces : {0, 1, 2, 3, 100, 121, 161, 1000, 1021, 1022, 5000}) {
      BothWays(conversion.to, conversion.from, conversion.factor, RandomLayout(pieces, 20, 16));
    }
  }
}

TEST_P(FlattenConformance, AnyAlignmentOfEveryConversion) {
  Layout layout;
  layout.counts = {101, 17};
  layout.begins = {0, 101};
  layout.offsets = {0, 101};
  layout.pieces_elements = layout.flat_elements = 118;
  for (const Conversion& conversion : Conversions()) {
    for (const size_t to : AllOffsets(PartBytes(conversion.to))) {
      for (const size_t from : AllOffsets(PartBytes(conversion.from))) {
        Transfers(/*to_flat=*/true, conversion.to, conversion.from, conversion.factor, layout, {from, to});
        Transfers(/*to_flat=*/false, conversion.to, conversion.from, conversion.factor, layout, {to, from});
      }
    }
  }
}

TEST_P(FlattenConformance, InPlaceWhereElementsHaveOneSize) {
  for (const Conversion& conversion : Conversions()) {
    if (SizeOf(conversion.to) != SizeOf(conversion.from)) continue;
    for (const size_t offset : AllOffsets(PartBytes(conversion.to))) {
      ConvertsInPlace(conversion, /*to_flat=*/true, offset);
      ConvertsInPlace(conversion, /*to_flat=*/false, offset);
    }
  }
}

// What the trailer says decides: for every dtype that a bucket's wire may have.
TEST_P(FlattenConformance, GateDecidesByTheTrailer) {
  struct Case {
    float failed;
    float joined;
    std::vector<float> used;  // of three pieces
    bool divide_by_live;
    double factor_expected;  // 0: nothing is written
  };
  constexpr int kRanks = 4;
  const std::vector<Case> cases = {
      {0, 0, {4, 4, 4}, false, 0.25},      {0, 0, {4, 0, 1}, true, 0.25},        {1, 0, {4, 4, 4}, false, 0},
      {0, 1, {3, 3, 3}, true, 1.0 / 3},    {0, 1, {3, 3, 3}, false, 0.25},       {0, 4, {1, 1, 0}, true, 1},
      {0, 0.75, {1, 0, 0}, true, 1.0 / 3}, {0, NAN, {1, NAN, 0}, true, 1.0 / 3}, {NAN, 0, {1, 1, 1}, false, 0},
      {2, 3, {1, 1, 1}, true, 0},
  };
  for (const DType wire : kFloatAndComplexDTypes) {
    const DType to = IsComplex(wire) ? wire : DType::kF32;
    const DType real = RealOf(wire);
    for (size_t c = 0; c < cases.size(); ++c) {
      SCOPED_TRACE(testing::Message() << Name(wire) << ", case " << c);
      rig_->Reset();
      const Case& test = cases[c];
      constexpr size_t kCount = 1500;
      constexpr size_t kTrailerEntries = 6;
      const size_t size = SizeOf(wire);
      Bytes source = TestElements(wire, 3 * kCount + kTrailerEntries, random_);
      const float trailer[kTrailerEntries] = {test.failed, test.joined, 1, test.used[0], test.used[1], test.used[2]};
      for (size_t i = 0; i < kTrailerEntries; ++i) {
        ReferenceCast(real, source.data() + (3 * kCount + i) * size, DType::kF32, &trailer[i], 1, 1);
      }
      Bytes expected = TestElements(to, 3 * kCount, random_);
      const DeviceBytes flat(*rig_, source, 0);
      const DeviceBytes targets(*rig_, expected, 0);
      std::vector<TensorView> views;
      for (size_t i = 0; i < 3; ++i) {
        // The second has gaps: every other element of twice as many.
        views.push_back(i == 1 ? DeviceView(targets.data() + kCount * SizeOf(to), to, {kCount / 2}, {2})
                               : DeviceView(targets.data() + i * kCount * SizeOf(to), to, {kCount}));
      }
      std::vector<BucketPiece> pieces;
      for (size_t i = 0; i < 3; ++i) pieces.push_back({&views[i], i * kCount, 0, 3 + i});
      const BucketGate gate = {/*trailer=*/flat.data() + 3 * kCount * size,
                               wire,
                               /*count_max=*/1 << 24,
                               /*closed_by=*/0,
                               test.divide_by_live,
                               /*joined=*/1,
                               kRanks};
      ASSERT_THAT(internal::UnflattenViews(pieces, flat.data(), wire, 0.25, &gate, executor()), IsOk());
      for (size_t i = 0; i < 3; ++i) {
        if (test.used[i] == 0 || test.factor_expected == 0) continue;
        const Bytes piece = ConvertedByReference(to, wire, source.data() + i * kCount * size, views[i].elements(),
                                                 test.factor_expected);
        const size_t step = i == 1 ? 2 : 1;
        for (size_t e = 0; e < views[i].elements(); ++e) {
          std::copy_n(piece.begin() + e * SizeOf(to), SizeOf(to),
                      expected.begin() + (i * kCount + e * step) * SizeOf(to));
        }
      }
      ExpectSameBytes(targets.Read(), expected, SizeOf(to));
    }
  }
}

TEST_P(FlattenConformance, CountsInATrailerAreBounded) {
  rig_->Reset();
  const float trailer[] = {0, 24, 1};
  const float one = 1;
  Bytes source(sizeof(trailer));
  std::memcpy(source.data(), trailer, sizeof(trailer));
  const DeviceBytes on_device(*rig_, source, 0);
  const DeviceBytes flat(*rig_,
                         Bytes(reinterpret_cast<const uint8_t*>(&one), reinterpret_cast<const uint8_t*>(&one + 1)), 0);
  const DeviceBytes target(*rig_, Bytes(sizeof(float)), 0);
  const TensorView view = DeviceView(target.data(), DType::kF32, {1});
  const BucketPiece piece = {&view, 0, 0, /*entry=*/2};
  const BucketGate gate = {on_device.data(),        DType::kF32,  /*count_max=*/16, /*closed_by=*/0,
                           /*divide_by_live=*/true, /*joined=*/1, /*ranks=*/32};
  ASSERT_THAT(internal::UnflattenViews({&piece, 1}, flat.data(), DType::kF32, 1, &gate, executor()), IsOk());
  const Bytes result = target.Read();
  float value = 0;
  std::memcpy(&value, result.data(), sizeof(value));
  EXPECT_EQ(value, 2.0f);  // 32 / (32 - 16)
}

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_FLATTEN_CONFORMANCE_H_
