#include "kernels/cpu/flatten.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/bfloat16.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/variant.h"

namespace lockstep::kernels {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TensorView View(void* data, DType dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  auto view = TensorView::Create(data, dtype, shape, strides, DeviceId());
  EXPECT_THAT(view, IsOk());
  return view.value_or(TensorView());
}

TensorView Vector(std::vector<float>* values) {
  return View(values->data(), DType::kF32, {static_cast<int64_t>(values->size())}, {});
}

std::vector<float> Iota(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

TEST(FlattenViews, PlacesScaledPiecesAtTheirOffsetsAndNothingBetweenThem) {
  std::vector<float> a = {1, 2, 3};
  std::vector<float> b = {10, 20};
  const TensorView views[] = {Vector(&a), TensorView(), Vector(&b)};
  const ViewPiece pieces[] = {{&views[0], 1}, {&views[1], 4}, {&views[2], 5}};
  std::vector<float> flat(8, -1);
  EXPECT_THAT(FlattenViews(pieces, flat.data(), DType::kF32, 0.5), IsOk());
  EXPECT_THAT(flat, ElementsAre(-1, 0.5, 1, 1.5, -1, 5, 10, -1));
}

TEST(FlattenViews, ConvertToTheFlatDTypeAndBack) {
  std::vector<float> a = {1, 2};
  std::vector<float> b = {3};
  const TensorView views[] = {Vector(&a), Vector(&b)};
  const ViewPiece pieces[] = {{&views[0], 0}, {&views[1], 2}};
  std::vector<uint16_t> flat(3);
  EXPECT_THAT(FlattenViews(pieces, flat.data(), DType::kBF16, 2.0), IsOk());
  EXPECT_THAT(flat, ElementsAre(BFloat16(2).bits(), BFloat16(4).bits(), BFloat16(6).bits()));
  EXPECT_THAT(UnflattenViews(pieces, flat.data(), DType::kBF16, 5), IsOk());
  EXPECT_THAT(a, ElementsAre(10, 20));
  EXPECT_THAT(b, ElementsAre(30));
}

TEST(FlattenViews, NoPiecesIsFine) {
  EXPECT_THAT(FlattenViews({}, nullptr, DType::kF16, 1.0), IsOk());
  EXPECT_THAT(UnflattenViews({}, nullptr, DType::kF16, 1.0), IsOk());
}

TEST(FlattenViews, TakesDenseViewsInTheOrderOfTheirMemory) {
  std::vector<float> memory = Iota(6);
  const TensorView transposed = View(memory.data(), DType::kF32, {2, 3}, {1, 2});
  ASSERT_TRUE(transposed.dense());
  std::vector<float> flat(7, -1);
  const ViewPiece pieces[] = {{&transposed, 1}};
  EXPECT_THAT(FlattenViews(pieces, flat.data(), DType::kF32, 1.0), IsOk());
  EXPECT_THAT(flat, ElementsAre(-1, 0, 1, 2, 3, 4, 5));

  std::vector<float> restored(6);
  const TensorView target = View(restored.data(), DType::kF32, {2, 3}, {1, 2});
  const ViewPiece targets[] = {{&target, 1}};
  EXPECT_THAT(UnflattenViews(targets, flat.data(), DType::kF32, 1.0), IsOk());
  EXPECT_EQ(restored, memory);
}

TEST(FlattenViews, WalksOtherViewsInRowMajorOrder) {
  // Two columns out of three, transposed: dimension 0 steps by 1, dimension 1 by 3.
  std::vector<float> memory = Iota(9);
  const TensorView view = View(memory.data(), DType::kF32, {2, 3}, {1, 3});
  ASSERT_FALSE(view.dense());
  std::vector<double> flat(6);
  const ViewPiece pieces[] = {{&view, 0}};
  EXPECT_THAT(FlattenViews(pieces, flat.data(), DType::kF64, 10.0), IsOk());
  EXPECT_THAT(flat, ElementsAre(0, 30, 60, 10, 40, 70));

  std::vector<float> restored(9, -1);
  const TensorView target = View(restored.data(), DType::kF32, {2, 3}, {1, 3});
  const ViewPiece targets[] = {{&target, 0}};
  EXPECT_THAT(UnflattenViews(targets, flat.data(), DType::kF64, 0.1), IsOk());
  EXPECT_THAT(restored, ElementsAre(0, 1, -1, 3, 4, -1, 6, 7, -1));
}

// Longer than one staging block, for every element size: a round trip through a view with gaps in three dimensions.
TEST(FlattenViews, StridedRoundTripKeepsEveryDType) {
  for (DType dtype : kAllDTypes) {
    const size_t size = SizeOf(dtype);
    const std::vector<int64_t> shape = {13, 11, 17};
    const std::vector<int64_t> strides = {2 * 1000, 20 * 2 + 1, 2};
    const size_t extent = 12 * 2000 + 10 * 41 + 16 * 2 + 1;
    std::vector<uint64_t> storage((extent * size + 7) / 8 + 1);
    auto* const memory = reinterpret_cast<uint8_t*>(storage.data());
    for (size_t i = 0; i < extent * size; ++i) memory[i] = static_cast<uint8_t>(i * 131 >> 3);
    const TensorView source = View(memory, dtype, shape, strides);
    ASSERT_FALSE(source.dense());
    std::vector<uint8_t> flat(source.bytes());
    const ViewPiece pieces[] = {{&source, 0}};
    ASSERT_THAT(FlattenViews(pieces, flat.data(), dtype, 1.0), IsOk());

    std::vector<uint64_t> restored_storage(storage.size());
    auto* const restored = reinterpret_cast<uint8_t*>(restored_storage.data());
    const TensorView target = View(restored, dtype, shape, strides);
    const ViewPiece targets[] = {{&target, 0}};
    ASSERT_THAT(UnflattenViews(targets, flat.data(), dtype, 1.0), IsOk());

    std::vector<uint8_t> expected(extent * size);
    size_t position = 0;
    for (int64_t i = 0; i < shape[0]; ++i) {
      for (int64_t j = 0; j < shape[1]; ++j) {
        for (int64_t k = 0; k < shape[2]; ++k, ++position) {
          const size_t at = (i * strides[0] + j * strides[1] + k * strides[2]) * size;
          ASSERT_TRUE(std::equal(memory + at, memory + at + size, &flat[position * size])) << Name(dtype);
          std::copy(memory + at, memory + at + size, &expected[at]);
        }
      }
    }
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), restored)) << Name(dtype);
  }
}

TEST(FlattenViews, SkipsEmptyViews) {
  const TensorView none;
  const TensorView empty = View(nullptr, DType::kF32, {3, 0, 2}, {});
  float value = 5;
  const TensorView scalar = View(&value, DType::kF32, {}, {});
  float flat = 0;
  const ViewPiece pieces[] = {{&none, 0}, {&empty, 0}, {&scalar, 0}};
  EXPECT_THAT(FlattenViews(pieces, &flat, DType::kF32, 2.0), IsOk());
  EXPECT_EQ(flat, 10);
}

TEST(FlattenViews, AnErrorNamesThePieceAndWritesNothing) {
  float good = 1;
  int32_t bad = 2;
  const TensorView views[] = {View(&good, DType::kF32, {1}, {}), View(&bad, DType::kI32, {1}, {})};
  std::vector<float> flat = {-1, -1};
  const ViewPiece pieces[] = {{&views[0], 0}, {&views[1], 1}};
  EXPECT_THAT(FlattenViews(pieces, flat.data(), DType::kF32, 1.0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("piece 1 of 2: cannot convert i32 to f32")));
  EXPECT_THAT(flat, ElementsAre(-1, -1));
  EXPECT_THAT(UnflattenViews(pieces, flat.data(), DType::kF32, 1.0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("piece 1 of 2: cannot convert f32 to i32")));
  EXPECT_EQ(good, 1);
}

TEST(FlattenViews, RefusesMemoryOfADevice) {
  float value = 1;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view,
                                TensorView::Create(&value, DType::kF32, {1}, {}, DeviceId{DeviceKind::kCuda, 0}));
  const ViewPiece pieces[] = {{&view, 0}};
  float flat = 0;
  EXPECT_THAT(
      FlattenViews(pieces, &flat, DType::kF32, 1.0),
      StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("cuda:0"), HasSubstr("not memory of the host"))));
}

// In blocks that are all of one length, and of which each is a byte longer than the one before, with a gap behind each.
class Blocks : public testing::TestWithParam<Variant> {
 protected:
  static constexpr size_t kCount = 3;
  static constexpr size_t kGap = 1;
  static constexpr char kUntouched = 'u';

  void SetUp() override {
    if (TableOf(GetParam()) == nullptr) GTEST_SKIP() << "not a " << Name(GetParam()) << " processor";
  }

  void Lay(size_t bytes, size_t growth) {
    blocks_.clear();
    size_t begin = 7;  // of a sequence that began before
    memory_.assign(kCount * (bytes + kCount * growth + kGap), kUntouched);
    char* data = memory_.data();
    for (size_t i = 0; i <= kCount; ++i) {
      blocks_.push_back({begin, i < kCount ? data : nullptr});
      begin += bytes + i * growth;
      data += bytes + i * growth + kGap;
    }
    flat_.resize(blocks_.back().begin - blocks_.front().begin);
    std::iota(flat_.begin(), flat_.end(), char{0});
  }

  // Whether the blocks have what is flat, and the gaps what they had.
  void ExpectScattered() const {
    size_t at = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const size_t bytes = blocks_[i + 1].begin - blocks_[i].begin;
      EXPECT_EQ(std::string(blocks_[i].data, bytes), std::string(&flat_[at], bytes)) << "block " << i;
      EXPECT_EQ(blocks_[i].data[bytes], kUntouched) << "behind block " << i;
      at += bytes;
    }
  }

  std::vector<Block> blocks_;
  std::vector<char> memory_;
  std::vector<char> flat_;
};

TEST_P(Blocks, GoToContiguousMemoryAndBack) {
  constexpr size_t kLongest = 600;  // longer than all that is copied in a way of its own
  const KernelTable& table = *TableOf(GetParam());
  for (const size_t growth : {0, 1}) {
    for (size_t bytes = 1; bytes <= kLongest; ++bytes) {
      SCOPED_TRACE(bytes);
      Lay(bytes, growth);
      table.scatter(blocks_.data(), kCount, flat_.data());
      ExpectScattered();
      std::vector<char> gathered(flat_.size() + 1, kUntouched);
      table.gather(blocks_.data(), kCount, gathered.data());
      EXPECT_EQ(gathered.back(), kUntouched);
      gathered.pop_back();
      EXPECT_EQ(gathered, flat_);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Blocks, testing::ValuesIn(kAllVariants),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace lockstep::kernels
