// What the conformance suites of kernels share. Each is instantiated with a MakeTestRig: it skips where that answers
// UNAVAILABLE.

#ifndef KERNELS_CUDA_KERNEL_CONFORMANCE_H_
#define KERNELS_CUDA_KERNEL_CONFORMANCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gtest/gtest.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/rig_testing.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace kernels {
namespace cuda {

using Bytes = std::vector<uint8_t>;

// Around vectors, units of blocks and blocks.
inline constexpr size_t kSizes[] = {0, 1, 2, 3, 15, 16, 17, 64, 255, 257, 1000, 1024, 4095, 4096, 4097, 16383, 20000};

class KernelConformance : public testing::TestWithParam<MakeTestRig> {
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
  // All of them for few elements; for many, where it would take long, a boundary and any other.
  std::vector<size_t> OffsetsFor(size_t count, size_t unit) {
    if (count <= 300) return AllOffsets(unit);
    return {0, unit * Below((kVectorBytes + unit - 1) / unit)};
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

  std::unique_ptr<TestRig> rig_;
  std::mt19937_64 random_;

 private:
  std::unique_ptr<testing::ScopedTrace> trace_;
};

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

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_KERNEL_CONFORMANCE_H_
