// What reduce.h promises, on any rig: instantiate ReduceConformance with a MakeTestRig.

#ifndef KERNELS_CUDA_REDUCE_CONFORMANCE_H_
#define KERNELS_CUDA_REDUCE_CONFORMANCE_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/kernel_conformance.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/test_rig.h"
#include "kernels/reference.h"
#include "kernels/test_arrays.h"

namespace lockstep {
namespace kernels {
namespace cuda {

class ReduceConformance : public KernelConformance {
 protected:
  static bool Combines(DType dtype, ReduceOp op) {
    return IsDefined(dtype, op) && op != ReduceOp::kAvg && op != ReduceOp::kPremulSum;
  }

  // Several sources into several targets, of which the first `in_place` are the first sources.
  void ReducesMany(DType dtype, ReduceOp op, size_t sources, size_t targets, size_t in_place, size_t count,
                   double factor, bool same_alignment) {
    SCOPED_TRACE(testing::Message() << Name(op) << " of " << sources << " times " << count << " " << Name(dtype)
                                    << " into " << targets << ", " << in_place << " in place, times " << factor);
    rig_->Reset();
    const size_t size = SizeOf(dtype);
    // Up to a boundary of vectors and beyond.
    const size_t offset = Below(17);
    const auto next_offset = [&] { return size * (same_alignment ? offset : Below(17)); };
    std::vector<Bytes> contents;
    std::vector<std::unique_ptr<DeviceBytes>> arrays;
    std::vector<const void*> from;
    std::vector<void*> to;
    std::vector<const void*> scaled_contents;
    std::vector<Bytes> scaled;
    for (size_t s = 0; s < sources; ++s) {
      contents.push_back(TestElements(dtype, count, random_));
      arrays.push_back(std::make_unique<DeviceBytes>(*rig_, contents.back(), next_offset()));
      from.push_back(arrays.back()->data());
      scaled.push_back(contents.back());
      if (factor != 1) ReferenceScale(dtype, scaled.back().data(), contents.back().data(), count, factor);
    }
    for (const Bytes& source : scaled) scaled_contents.push_back(source.data());
    for (size_t t = 0; t < targets; ++t) {
      if (t >= in_place)
        arrays.push_back(std::make_unique<DeviceBytes>(*rig_, Bytes(count * size, 0x55), next_offset()));
      to.push_back(t < in_place ? arrays[t]->data() : arrays.back()->data());
    }
    Bytes expected(count * size);
    ReferenceReduceMany(dtype, op, expected.data(), scaled_contents.data(), sources, count);
    ASSERT_THAT(internal::ReduceMany(dtype, op, to, from, count, factor, executor()), IsOk());
    for (size_t a = 0; a < arrays.size(); ++a) {
      const bool is_target = a < in_place || a >= sources;
      ExpectSameBytes(arrays[a]->Read(), is_target ? expected : contents[a], size);
      EXPECT_TRUE(arrays[a]->GuardsIntact());
    }
  }
};

TEST_P(ReduceConformance, CombinesTwoOfEveryDTypeByEveryOperation) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      if (!Combines(dtype, op)) {
        EXPECT_THAT(internal::Reduce(dtype, op, nullptr, nullptr, nullptr, 0, executor()),
                    StatusIs(absl::StatusCode::kInvalidArgument));
        continue;
      }
      for (const size_t count : kSizes) {
        SCOPED_TRACE(testing::Message() << Name(op) << " of " << count << " " << Name(dtype));
        rig_->Reset();
        const size_t size = SizeOf(dtype);
        const Bytes left = TestElements(dtype, count, random_);
        const Bytes right = TestElements(dtype, count, random_);
        Bytes expected(left.size());
        ReferenceCombine(dtype, op, expected.data(), left.data(), right.data(), count);
        const DeviceBytes left_array(*rig_, left, Below(17) * size);
        const DeviceBytes right_array(*rig_, right, Below(17) * size);
        ASSERT_THAT(
            internal::Reduce(dtype, op, left_array.data(), left_array.data(), right_array.data(), count, executor()),
            IsOk());
        ExpectSameBytes(left_array.Read(), expected, size);
        EXPECT_TRUE(left_array.GuardsIntact());
        ExpectSameBytes(right_array.Read(), right, size);
      }
    }
  }
}

// Every pair of codes of the 8-bit floats, by every operation.
TEST_P(ReduceConformance, CombinesAllPairsOf8BitFloats) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
    Bytes left(65536);
    Bytes right(65536);
    for (size_t i = 0; i < left.size(); ++i) {
      left[i] = static_cast<uint8_t>(i);
      right[i] = static_cast<uint8_t>(i >> 8);
    }
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax}) {
      SCOPED_TRACE(testing::Message() << Name(op) << " of " << Name(dtype));
      rig_->Reset();
      Bytes expected(left.size());
      ReferenceCombine(dtype, op, expected.data(), left.data(), right.data(), left.size());
      const DeviceBytes left_array(*rig_, left, 0);
      const DeviceBytes right_array(*rig_, right, 0);
      const DeviceBytes target(*rig_, Bytes(left.size(), 0x55), 0);
      ASSERT_THAT(
          internal::Reduce(dtype, op, target.data(), left_array.data(), right_array.data(), left.size(), executor()),
          IsOk());
      ExpectSameBytes(target.Read(), expected, 1);
    }
  }
}

TEST_P(ReduceConformance, ReducesManyIntoMany) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kAllReduceOps) {
      if (!Combines(dtype, op)) continue;
      for (const size_t sources : {1, 2, 3, 8}) {
        const size_t targets = 1 + Below(8);
        const size_t in_place = Below(std::min(sources, targets) + 1);
        ReducesMany(dtype, op, sources, targets, in_place, 1 + Below(6000), 1, Below(3) != 0);
      }
    }
  }
}

TEST_P(ReduceConformance, SumsScaledSources) {
  for (const DType dtype : kAllDTypes) {
    if (!IsFloat(dtype) && !IsComplex(dtype)) continue;
    for (const size_t sources : {1, 2, 5, 8}) {
      ReducesMany(dtype, ReduceOp::kSum, sources, 2, 1, 1 + Below(9000), 1.0 / 3, Below(3) != 0);
    }
  }
}

TEST_P(ReduceConformance, RefusesWhatCannotBeReduced) {
  using absl::StatusCode;
  using testing::HasSubstr;
  rig_->Reset();
  char* const memory = rig_->Allocate(64);
  const auto reduce = [&](DType dtype, ReduceOp op, size_t targets, size_t sources, double factor, size_t offset = 0) {
    const std::vector<void*> to(targets, memory);
    const std::vector<const void*> from(sources, memory + offset);
    return internal::ReduceMany(dtype, op, to, from, 1, factor, executor());
  };
  EXPECT_THAT(reduce(DType::kF32, ReduceOp::kSum, 1, 9, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("1 to 8")));
  EXPECT_THAT(reduce(DType::kF32, ReduceOp::kSum, 0, 2, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("1 to 8")));
  EXPECT_THAT(reduce(DType::kF32, ReduceOp::kMax, 1, 2, 2),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("only those of sum")));
  EXPECT_THAT(reduce(DType::kI32, ReduceOp::kSum, 1, 2, 2), StatusIs(StatusCode::kInvalidArgument, HasSubstr("i32")));
  EXPECT_THAT(reduce(DType::kComplex128, ReduceOp::kProd, 1, 2, 1, 8),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not aligned to 16 bytes")));
  const void* const sources[] = {memory, memory + 16};
  EXPECT_THAT(internal::Reduce(DType::kF32, ReduceOp::kSum, memory, sources[0], sources[1], 4, executor()), IsOk());
  EXPECT_THAT(internal::Reduce(DType::kF32, ReduceOp::kSum, memory, sources[0], sources[1], 5, executor()),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("overlaps a source")));
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_REDUCE_CONFORMANCE_H_
