// How many launches flatten and unflatten take, and what they refuse. Their results: flatten_conformance.h.

#include "kernels/cuda/flatten.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cuda/rig_testing.h"

namespace lockstep::kernels::cuda {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;

constexpr DeviceId kDevice = {DeviceKind::kCuda, 0};

TensorView View(void* data, DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides = {},
                DeviceId device = kDevice) {
  auto view = TensorView::Create(data, dtype, shape, strides, device);
  EXPECT_THAT(view.status(), IsOk());
  return *std::move(view);
}

// `count` tensors of 3 elements, side by side.
class ManyPieces {
 public:
  explicit ManyPieces(size_t count) : memory_(3 * count, 1.0f), flat_(3 * count + 1000) {
    for (size_t i = 0; i < count; ++i) views_.push_back(View(&memory_[3 * i], DType::kF32, {3}));
    for (size_t i = 0; i < count; ++i) pieces_.push_back({&views_[i], 3 * i});
  }

  size_t Flatten(HostExecutor executor, size_t entry_count = 0) {
    std::vector<BucketEntry> entries;
    for (size_t i = 0; i < entry_count; ++i) entries.push_back({3 * pieces_.size() + i, 1.0f});
    EXPECT_THAT(internal::FlattenViews(pieces_, entries, flat_.data(), DType::kF32, 1, executor), IsOk());
    return executor.launches();
  }

 private:
  std::vector<float> memory_;
  std::vector<float> flat_;
  std::vector<TensorView> views_;
  std::vector<BucketPiece> pieces_;
};

TEST(FlattenLaunches, ABucketIsOneTailIncluded) {
  EXPECT_EQ(ManyPieces(161).Flatten(HostExecutor(), 164), 1);
  EXPECT_EQ(ManyPieces(90).Flatten(HostExecutor(false), 93), 1);
  EXPECT_EQ(ManyPieces(0).Flatten(HostExecutor(), 3), 1);
  EXPECT_EQ(ManyPieces(0).Flatten(HostExecutor()), 0);
}

TEST(FlattenLaunches, AreAsManyAsArgumentsFill) {
  EXPECT_EQ(ManyPieces(1000).Flatten(HostExecutor()), 1);
  EXPECT_EQ(ManyPieces(5000).Flatten(HostExecutor()), 5);
  // With 4 KiB of arguments each.
  EXPECT_EQ(ManyPieces(1000).Flatten(HostExecutor(false)), 8);
}

TEST(FlattenLaunches, AreOneForEachDTypeAndOneForGaps) {
  std::vector<float> memory(100);
  std::vector<float> flat(100);
  const TensorView views[] = {View(memory.data(), DType::kF32, {4}), View(memory.data() + 8, DType::kBF16, {4}),
                              View(memory.data() + 16, DType::kF32, {4}, {2}),
                              View(memory.data() + 32, DType::kF32, {3}, {3})};
  const BucketPiece pieces[] = {{&views[0], 0}, {&views[1], 4}, {&views[2], 8}, {&views[3], 12}};
  HostExecutor executor;
  EXPECT_THAT(internal::FlattenViews(pieces, {}, flat.data(), DType::kF32, 1, executor), IsOk());
  EXPECT_EQ(executor.launches(), 3);
}

TEST(FlattenLaunches, AreNoneForViewsThatAreTheFlatArray) {
  std::vector<float> flat(100);
  const TensorView view = View(flat.data() + 4, DType::kF32, {50});
  const BucketPiece piece = {&view, 4};
  HostExecutor executor;
  EXPECT_THAT(internal::FlattenViews({&piece, 1}, {}, flat.data(), DType::kF32, 1, executor), IsOk());
  EXPECT_THAT(internal::UnflattenViews({&piece, 1}, flat.data(), DType::kF32, 1, nullptr, executor), IsOk());
  EXPECT_EQ(executor.launches(), 0);
}

auto Refused(const std::string& why) { return StatusIs(StatusCode::kInvalidArgument, HasSubstr(why)); }

class FlattenRefuses : public testing::Test {
 protected:
  absl::Status Flatten(const TensorView& view, void* flat, DType flat_dtype, double factor = 1,
                       const std::vector<BucketEntry>& entries = {}) {
    const BucketPiece piece = {&view};
    const absl::Status status = internal::FlattenViews({&piece, 1}, entries, flat, flat_dtype, factor, executor_);
    EXPECT_EQ(executor_.launches(), 0);
    return status;
  }

  std::vector<float> memory_ = std::vector<float>(64);
  std::vector<float> flat_ = std::vector<float>(64);
  HostExecutor executor_;
};

TEST_F(FlattenRefuses, WhatCannotBeCast) {
  EXPECT_THAT(
      Flatten(View(memory_.data(), DType::kI32, {2}), flat_.data(), DType::kF32),
      StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("piece 0 of 1"), HasSubstr("cannot convert i32 to f32"))));
  EXPECT_THAT(Flatten(View(memory_.data(), DType::kI32, {2}), flat_.data(), DType::kI32, 0.5),
              Refused("cannot scale i32"));
}

TEST_F(FlattenRefuses, ViewsElsewhere) {
  EXPECT_THAT(Flatten(View(memory_.data(), DType::kF32, {2}, {}, DeviceId()), flat_.data(), DType::kF32),
              Refused("is not memory of cuda:0"));
  EXPECT_THAT(Flatten(View(memory_.data(), DType::kF32, {2}, {}, {DeviceKind::kCuda, 1}), flat_.data(), DType::kF32),
              Refused("is not memory of cuda:0"));
}

TEST_F(FlattenRefuses, FlatArraysThatAreNotAligned) {
  EXPECT_THAT(Flatten(View(memory_.data(), DType::kF32, {2}), reinterpret_cast<char*>(flat_.data()) + 2, DType::kF32),
              Refused("a flat array at"));
}

TEST_F(FlattenRefuses, EntriesOfIntegersAndFarApart) {
  EXPECT_THAT(Flatten(View(memory_.data(), DType::kI32, {2}), flat_.data(), DType::kI32, 1, {{5, 1.0f}}),
              Refused("float values into an array of i32"));
  EXPECT_THAT(
      Flatten(View(memory_.data(), DType::kF32, {2}), flat_.data(), DType::kF32, 1, {{5, 1.0f}, {size_t{1} << 33, 1}}),
      Refused("too far apart"));
}

TEST_F(FlattenRefuses, GatesThatAreNone) {
  const TensorView view = View(memory_.data(), DType::kI32, {2});
  BucketPiece piece = {&view};
  BucketGate gate;
  const auto unflatten = [&] {
    return internal::UnflattenViews({&piece, 1}, flat_.data(), DType::kI32, 1, &gate, executor_);
  };
  EXPECT_THAT(unflatten(), Refused("no gate"));
  gate.trailer = flat_.data();
  gate.dtype = DType::kI32;
  EXPECT_THAT(unflatten(), Refused("a trailer of i32"));
  gate.dtype = DType::kF32;
  gate.divide_by_live = true;
  EXPECT_THAT(unflatten(), Refused("cannot scale i32"));
  gate.divide_by_live = false;
  piece.view = nullptr;
  EXPECT_THAT(unflatten(), Refused("has no view"));
}

TEST(CudaBucketKernels, RefuseStreamsOfTheHost) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, HostDevice()->CreateStream("test"));
  float flat = 0;
  BucketGate gate;
  gate.trailer = &flat;
  EXPECT_THAT(CudaBucketKernels()->Gather({}, {}, &flat, DType::kF32, 1, *stream),
              Refused("cannot run in a stream of host"));
  EXPECT_THAT(CudaBucketKernels()->Spread({}, &flat, DType::kF32, 1, gate, *stream),
              Refused("cannot run in a stream of host"));
}

}  // namespace
}  // namespace lockstep::kernels::cuda
