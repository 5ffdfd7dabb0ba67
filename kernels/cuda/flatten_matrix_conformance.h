// What flatten.h promises for every pair of dtypes: any number of pieces, any alignment, and views that are the flat array's own
// memory. Instantiate FlattenMatrixConformance with a MakeTestRig.

#ifndef KERNELS_CUDA_FLATTEN_MATRIX_CONFORMANCE_H_
#define KERNELS_CUDA_FLATTEN_MATRIX_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cuda/flatten.h"
#include "kernels/cuda/flatten_conformance.h"
#include "kernels/cuda/kernel_conformance.h"
#include "kernels/cuda/rig_testing.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class FlattenMatrixConformance : public FlattenConformance {
 protected:
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
    const std::vector<size_t> counts = {101, 5000, 1};
    const std::vector<size_t> offsets = {3, 107, 5120};
    const Bytes source = TestElements(conversion.from, 5200, random_);
    const DeviceBytes flat(*rig_, source, offset);
    std::vector<TensorView> views;
    std::vector<BucketPiece> pieces(counts.size());
    Bytes expected = source;
    for (size_t i = 0; i < counts.size(); ++i) {
      views.push_back(DeviceView(flat.data() + offsets[i] * size, to_flat ? conversion.from : conversion.to,
                                 {static_cast<int64_t>(counts[i])}));
      const Bytes piece = ConvertedByReference(conversion.to, conversion.from, source.data() + offsets[i] * size,
                                               counts[i], conversion.factor);
      std::copy(piece.begin(), piece.end(), expected.begin() + offsets[i] * size);
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      pieces[i].view = &views[i];
      pieces[i].offset = offsets[i];
    }
    if (to_flat) {
      ASSERT_THAT(internal::FlattenViews(pieces, {}, flat.data(), conversion.to, conversion.factor, executor()),
                  IsOk());
    } else {
      ASSERT_THAT(
          internal::UnflattenViews(pieces, flat.data(), conversion.from, conversion.factor, nullptr, executor()),
          IsOk());
    }
    ExpectSameBytes(flat.Read(), expected, size);
    EXPECT_TRUE(flat.GuardsIntact());
  }
};

// Around what one block of arguments holds, and many of them.
TEST_P(FlattenMatrixConformance, AnyNumberOfPiecesOfEveryConversion) {
  for (const Conversion& conversion : Conversions()) {
    for (const size_t pieces : {0, 1, 2, 3, 100, 121, 161, 1000, 1021, 1022, 5000}) {
      const Layout layout = RandomLayout(pieces, 20, 16);
      Flattens(conversion.to, conversion.from, conversion.factor, layout);
      Unflattens(conversion.to, conversion.from, conversion.factor, layout);
    }
  }
}

TEST_P(FlattenMatrixConformance, AnyAlignmentOfEveryConversion) {
  Layout layout;
  layout.counts = {101, 17};
  layout.begins = {0, 101};
  layout.offsets = {0, 101};
  layout.pieces_elements = layout.flat_elements = 118;
  for (const Conversion& conversion : Conversions()) {
    for (const size_t to : AllOffsets(PartBytes(conversion.to))) {
      for (const size_t from : AllOffsets(PartBytes(conversion.from))) {
        Flattens(conversion.to, conversion.from, conversion.factor, layout, {from, to});
        Unflattens(conversion.to, conversion.from, conversion.factor, layout, {to, from});
      }
    }
  }
}

TEST_P(FlattenMatrixConformance, InPlaceWhereElementsHaveOneSize) {
  for (const Conversion& conversion : Conversions()) {
    if (SizeOf(conversion.to) != SizeOf(conversion.from)) continue;
    for (const size_t offset : AllOffsets(PartBytes(conversion.to))) {
      ConvertsInPlace(conversion, /*to_flat=*/true, offset);
      ConvertsInPlace(conversion, /*to_flat=*/false, offset);
    }
  }
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_FLATTEN_MATRIX_CONFORMANCE_H_
