// What unflattening with a BucketGate promises (kernels/bucket_kernels.h), on any rig: instantiate GateConformance with
// a MakeTestRig.

#ifndef KERNELS_CUDA_GATE_CONFORMANCE_H_
#define KERNELS_CUDA_GATE_CONFORMANCE_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gtest/gtest.h"
#include "kernels/arrays_testing.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cuda/flatten.h"
#include "kernels/cuda/kernel_conformance.h"
#include "kernels/cuda/rig_testing.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class GateConformance : public KernelConformance {};

// What the trailer says decides: for every dtype that a bucket's wire may have.
TEST_P(GateConformance, GateDecidesByTheTrailer) {
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
      std::vector<BucketPiece> pieces(3);
      for (size_t i = 0; i < 3; ++i) {
        // The second has gaps: every other element of twice as many.
        views.push_back(i == 1 ? DeviceView(targets.data() + kCount * SizeOf(to), to, {kCount / 2}, {2})
                               : DeviceView(targets.data() + i * kCount * SizeOf(to), to, {kCount}));
      }
      for (size_t i = 0; i < 3; ++i) {
        pieces[i].view = &views[i];
        pieces[i].offset = i * kCount;
        pieces[i].entry = 3 + i;
      }
      BucketGate gate;
      gate.trailer = flat.data() + 3 * kCount * size;
      gate.dtype = wire;
      gate.closed_by = 0;
      gate.joined = 1;
      gate.ranks = kRanks;
      gate.count_max = 1 << 24;
      gate.divide_by_live = test.divide_by_live;
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

TEST_P(GateConformance, CountsInATrailerAreBounded) {
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
  BucketPiece piece;
  piece.view = &view;
  piece.entry = 2;
  BucketGate gate;
  gate.trailer = on_device.data();
  gate.joined = 1;
  gate.ranks = 32;
  gate.count_max = 16;
  gate.divide_by_live = true;
  ASSERT_THAT(internal::UnflattenViews({&piece, 1}, flat.data(), DType::kF32, 1, &gate, executor()), IsOk());
  const Bytes result = target.Read();
  float value = 0;
  std::memcpy(&value, result.data(), sizeof(value));
  EXPECT_EQ(value, 2.0f);  // 32 / (32 - 16)
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_GATE_CONFORMANCE_H_
