// What flatten.h promises, on any rig: instantiate FlattenConformance with a MakeTestRig.
//
// Pieces of random sizes and alignments, with gaps between them, from arrays that are poisoned around them; the outcome
// is compared, gaps included, with kernels/reference_testing.h, which shares nothing with what it judges.

#ifndef KERNELS_CUDA_FLATTEN_CONFORMANCE_H_
#define KERNELS_CUDA_FLATTEN_CONFORMANCE_H_

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cpu/flatten.h"
#include "kernels/cuda/flatten.h"
#include "kernels/cuda/kernel_conformance.h"
#include "kernels/cuda/rig_testing.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class FlattenConformance : public KernelConformance {
 protected:
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
    std::vector<BucketPiece> pieces(views.size());
    for (size_t i = 0; i < views.size(); ++i) {
      pieces[i].view = &views[i];
      pieces[i].offset = layout.offsets[i];
    }
    return pieces;
  }

  // The arrays of pieces and the flat one begin so many bytes behind a boundary.
  struct Offsets {
    size_t pieces;
    size_t flat;
  };

  // At any alignment.
  void Flattens(DType to, DType from, double factor, const Layout& layout) {
    Flattens(to, from, factor, layout, {AnyOffset(from), AnyOffset(to)});
  }
  void Unflattens(DType to, DType from, double factor, const Layout& layout) {
    Unflattens(to, from, factor, layout, {AnyOffset(to), AnyOffset(from)});
  }

  void Flattens(DType to, DType from, double factor, const Layout& layout, const Offsets& offsets) {
    SCOPED_TRACE(testing::Message() << Name(from) << " to " << Name(to) << " times " << factor << ", "
                                    << layout.counts.size() << " pieces, " << offsets.pieces << " and " << offsets.flat
                                    << " B");
    rig_->Reset();
    const Bytes source = TestElements(from, layout.pieces_elements, random_);
    Bytes expected = TestElements(to, layout.flat_elements, random_);
    const DeviceBytes on_device(*rig_, source, offsets.pieces);
    const DeviceBytes flat(*rig_, expected, offsets.flat);
    const std::vector<TensorView> views = Views(layout, on_device.data(), from);
    ASSERT_THAT(internal::FlattenViews(Pieces(layout, views), {}, flat.data(), to, factor, executor()), IsOk());
    for (size_t i = 0; i < views.size(); ++i) {
      const Bytes piece =
          ConvertedByReference(to, from, source.data() + layout.begins[i] * SizeOf(from), layout.counts[i], factor);
      std::copy(piece.begin(), piece.end(), expected.begin() + layout.offsets[i] * SizeOf(to));
    }
    ExpectSameBytes(flat.Read(), expected, SizeOf(to));
    EXPECT_TRUE(flat.GuardsIntact());
    ExpectSameBytes(on_device.Read(), source, SizeOf(from));
  }

  void Unflattens(DType to, DType from, double factor, const Layout& layout, const Offsets& offsets) {
    SCOPED_TRACE(testing::Message() << Name(to) << " from flat " << Name(from) << " times " << factor << ", "
                                    << layout.counts.size() << " pieces, " << offsets.pieces << " and " << offsets.flat
                                    << " B");
    rig_->Reset();
    const Bytes source = TestElements(from, layout.flat_elements, random_);
    Bytes expected = TestElements(to, layout.pieces_elements, random_);
    const DeviceBytes flat(*rig_, source, offsets.flat);
    const DeviceBytes on_device(*rig_, expected, offsets.pieces);
    const std::vector<TensorView> views = Views(layout, on_device.data(), to);
    ASSERT_THAT(internal::UnflattenViews(Pieces(layout, views), flat.data(), from, factor, nullptr, executor()),
                IsOk());
    for (size_t i = 0; i < views.size(); ++i) {
      const Bytes piece =
          ConvertedByReference(to, from, source.data() + layout.offsets[i] * SizeOf(from), layout.counts[i], factor);
      std::copy(piece.begin(), piece.end(), expected.begin() + layout.begins[i] * SizeOf(to));
    }
    ExpectSameBytes(on_device.Read(), expected, SizeOf(to));
    EXPECT_TRUE(on_device.GuardsIntact());
    ExpectSameBytes(flat.Read(), source, SizeOf(from));
  }
};

TEST_P(FlattenConformance, BothWaysBetweenAllFloats) {
  for (const DType to : kFloatDTypes) {
    for (const DType from : kFloatDTypes) {
      for (const double factor : {1.0, 0.125, 1.0 / 3}) {
        const Layout layout = RandomLayout(20, 20000);
        Flattens(to, from, factor, layout);
        Unflattens(to, from, factor, layout);
      }
    }
  }
}

TEST_P(FlattenConformance, BothWaysOfWhatIsOnlyMoved) {
  for (const DType dtype : kAllDTypes) {
    const Layout layout = RandomLayout(30, 20000);
    Flattens(dtype, dtype, 1, layout);
    Unflattens(dtype, dtype, 1, layout);
  }
}

TEST_P(FlattenConformance, BothWaysOfComplexNumbersWithAFactor) {
  for (const DType dtype : {DType::kComplex64, DType::kComplex128}) {
    const Layout layout = RandomLayout(30, 20000);
    Flattens(dtype, dtype, 1.0 / 3, layout);
    Unflattens(dtype, dtype, 1.0 / 3, layout);
  }
}

TEST_P(FlattenConformance, LargePiecesInSeveralBlocks) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    Layout layout;
    layout.counts = {3000001, 1 << 20, 5};
    layout.begins = {1, 3000064, 5000000};
    layout.offsets = {3, 3000128, 5000001};
    layout.pieces_elements = layout.flat_elements = 5000010;
    Flattens(dtype, DType::kF32, 0.5, layout);
    Unflattens(DType::kF32, dtype, 0.5, layout);
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
      std::vector<BucketPiece> pieces(3);
      pieces[0].offset = 1;
      pieces[0].count = kCount - 1;
      pieces[1].view = &view;
      pieces[1].offset = kCount;
      pieces[2].offset = 2 * kCount + 1;  // no zeros at all
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
      std::vector<BucketPiece> pieces(kViews);
      std::vector<kernels::ViewPiece> host_pieces(kViews);
      for (size_t i = 0; i < kViews; ++i) {
        pieces[i].view = &views[i];
        host_pieces[i].view = &host_views[i];
        pieces[i].offset = host_pieces[i].offset = offsets[i];
      }
      const double factor = flat_dtype == DType::kU8 ? 1 : 0.75;
      if (to_flat) {
        ASSERT_THAT(internal::FlattenViews(pieces, {}, flat.data(), flat_dtype, factor, executor()), IsOk());
        ASSERT_THAT(kernels::FlattenViews(host_pieces, expected.data(), flat_dtype, factor), IsOk());
      } else {
        ASSERT_THAT(internal::UnflattenViews(pieces, flat.data(), flat_dtype, factor, nullptr, executor()), IsOk());
        ASSERT_THAT(kernels::UnflattenViews(host_pieces, expected.data(), flat_dtype, factor), IsOk());
      }
      ExpectSameBytes(flat.Read(), expected, SizeOf(flat_dtype));
      for (size_t i = 0; i < kViews; ++i) {
        SCOPED_TRACE(views[i].ToString());
        ExpectSameBytes(arrays[i]->Read(), contents[i], SizeOf(views[i].dtype()));
      }
    }
  }
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_FLATTEN_CONFORMANCE_H_
