#include "base/device/tensor_view.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

using Numbers = std::vector<int64_t>;

alignas(256) char memory[4096];

absl::StatusOr<TensorView> Make(const Numbers& shape, const Numbers& strides = {}, DType dtype = DType::kF32,
                                void* data = memory) {
  return TensorView::Create(data, dtype, shape, strides, DeviceId());
}

auto Refused(const std::string& rule) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(rule)); }

TEST(TensorViewTest, DefaultIsEmpty) {
  const TensorView view;
  EXPECT_EQ(view.data(), nullptr);
  EXPECT_EQ(view.elements(), 0);
  EXPECT_EQ(view.bytes(), 0);
  EXPECT_EQ(view.ToString(), "no tensor");
}

TEST(TensorViewTest, WithoutStridesItIsRowMajor) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, Make({2, 3, 4}));
  EXPECT_THAT(view.shape(), ElementsAre(2, 3, 4));
  EXPECT_THAT(view.strides(), ElementsAre(12, 4, 1));
  EXPECT_EQ(view.elements(), 24);
  EXPECT_EQ(view.bytes(), 96);
  EXPECT_TRUE(view.contiguous());
  EXPECT_TRUE(view.dense());
  EXPECT_EQ(view.ToString(), "f32[2, 3, 4] on host");
}

TEST(TensorViewTest, ScalarHasOneElement) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, Make({}));
  EXPECT_THAT(view.shape(), IsEmpty());
  EXPECT_EQ(view.elements(), 1);
  EXPECT_EQ(view.bytes(), 4);
  EXPECT_EQ(view.ToString(), "f32[] on host");
}

TEST(TensorViewTest, VectorIsContiguousOnTheHost) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, TensorView::Vector(memory, DType::kF64, 7));
  EXPECT_THAT(view.shape(), ElementsAre(7));
  EXPECT_EQ(view.bytes(), 56);
  EXPECT_TRUE(view.contiguous());
  EXPECT_THAT(TensorView::Vector(memory, DType::kF64, -1), Refused("f64[-1]: negative extent"));
  EXPECT_THAT(TensorView::Vector(nullptr, DType::kF64, 0), IsOk());
}

TEST(TensorViewTest, DeviceIsKept) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view,
                                TensorView::Create(memory, DType::kBF16, {5}, {}, {DeviceKind::kCuda, 1}));
  EXPECT_EQ(view.device(), (DeviceId{DeviceKind::kCuda, 1}));
  EXPECT_EQ(view.ToString(), "bf16[5] on cuda:1");
}

TEST(TensorViewTest, PermutedDimensionsAreDenseButNotContiguous) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView transpose, Make({3, 4}, {1, 3}));
  EXPECT_FALSE(transpose.contiguous());
  EXPECT_TRUE(transpose.dense());
  EXPECT_EQ(transpose.ToString(), "f32[3, 4] strides [1, 3] on host");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView channels_last, Make({2, 3, 4, 5}, {60, 1, 15, 3}));
  EXPECT_FALSE(channels_last.contiguous());
  EXPECT_TRUE(channels_last.dense());
}

TEST(TensorViewTest, GapsMakeItNeither) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView rows, Make({3, 4}, {8, 1}));
  EXPECT_FALSE(rows.contiguous());
  EXPECT_FALSE(rows.dense());
  EXPECT_EQ(rows.elements(), 12);
  EXPECT_EQ(rows.bytes(), 48);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView every_second, Make({4}, {2}));
  EXPECT_FALSE(every_second.contiguous());
  EXPECT_FALSE(every_second.dense());
}

TEST(TensorViewTest, StridesOfSingleExtentsDoNotMatter) {
  for (const Numbers& strides : {Numbers{4, 4, 1}, Numbers{4, 0, 1}, Numbers{4, 999, 1}, Numbers{4, kHuge, 1}}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, Make({3, 1, 4}, strides));
    EXPECT_TRUE(view.contiguous());
    EXPECT_TRUE(view.dense());
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView one, Make({1, 1}, {0, 0}));
  EXPECT_TRUE(one.contiguous());
  EXPECT_EQ(one.elements(), 1);
}

TEST(TensorViewTest, ZeroElementsAreAlwaysFine) {
  for (const Numbers& shape : {Numbers{0}, Numbers{3, 0}, Numbers{0, 0}, Numbers{0, 5, 7}}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView view, Make(shape, {}, DType::kF32, nullptr));
    EXPECT_EQ(view.elements(), 0);
    EXPECT_EQ(view.bytes(), 0);
    EXPECT_TRUE(view.contiguous());
    EXPECT_TRUE(view.dense());
  }
  EXPECT_THAT(Make({3, 0}, {0, 0}), IsOk());
  EXPECT_THAT(Make({3, 0}, {1, 1}), IsOk());
  EXPECT_THAT(Make({0}, {}, DType::kF64, memory + 1), IsOk());
}

TEST(TensorViewTest, OverlapIsRefused) {
  EXPECT_THAT(Make({2}, {0}), Refused("f32[2]: with strides [0] elements overlap"));
  EXPECT_THAT(Make({3, 4}, {0, 1}), Refused("overlap"));
  EXPECT_THAT(Make({3, 4}, {1, 1}), Refused("overlap"));
  EXPECT_THAT(Make({3, 4}, {3, 1}), Refused("overlap"));
  EXPECT_THAT(Make({2, 2}, {1, 1}), Refused("overlap"));
  EXPECT_THAT(Make({3, 4}, {4, 1}), IsOk());
}

// Against the definition: no two index tuples may share an offset. The rule may refuse more than that, but every view
// that it accepts must be distinct, and all permutations of a contiguous tensor must be accepted.
TEST(TensorViewTest, AcceptedStridesNeverCollide) {
  int accepted = 0;
  for (int64_t e0 = 1; e0 <= 3; ++e0)
    for (int64_t e1 = 1; e1 <= 3; ++e1)
      for (int64_t e2 = 1; e2 <= 3; ++e2)
        for (int64_t s0 = 0; s0 <= 9; ++s0)
          for (int64_t s1 = 0; s1 <= 9; ++s1)
            for (int64_t s2 = 0; s2 <= 9; ++s2) {
              const auto view = Make({e0, e1, e2}, {s0, s1, s2}, DType::kU8);
              if (!view.ok()) continue;
              ++accepted;
              std::vector<bool> used(64, false);
              int64_t end = 0;
              for (int64_t i = 0; i < e0; ++i)
                for (int64_t j = 0; j < e1; ++j)
                  for (int64_t k = 0; k < e2; ++k) {
                    const int64_t offset = i * s0 + j * s1 + k * s2;
                    ASSERT_FALSE(used[offset]) << view->ToString();
                    used[offset] = true;
                    end = std::max(end, offset + 1);
                  }
              ASSERT_EQ(view->dense(), end == e0 * e1 * e2) << view->ToString();
            }
  EXPECT_GT(accepted, 1000);
}

TEST(TensorViewTest, BadShapesAndStridesAreRefused) {
  EXPECT_THAT(Make({3, -1}), Refused("f32[3, -1]: negative extent"));
  EXPECT_THAT(Make({3, 4}, {-4, 1}), Refused("negative stride in [-4, 1]"));
  EXPECT_THAT(Make({3, 4}, {1}), Refused("strides [1] do not match the shape: 1 for 2 dimensions"));
  EXPECT_THAT(Make({}, {1}), Refused("strides [1] do not match the shape: 1 for 0 dimensions"));
  EXPECT_THAT(Make(Numbers(33, 1)), Refused("33 dimensions, at most 32"));
  EXPECT_THAT(Make(Numbers(32, 1)), IsOk());
}

TEST(TensorViewTest, UnknownDTypeIsRefused) {
  EXPECT_THAT(Make({3}, {}, static_cast<DType>(200)), Refused("unknown dtype(200)"));
}

TEST(TensorViewTest, NullDataWithElementsIsRefused) {
  EXPECT_THAT(Make({3}, {}, DType::kF32, nullptr), Refused("f32[3]: null data"));
  EXPECT_THAT(Make({}, {}, DType::kF32, nullptr), Refused("f32[]: null data"));
}

TEST(TensorViewTest, DataMustBeAlignedToItsElement) {
  for (DType dtype : kAllDTypes) {
    // A complex number is aligned like its parts.
    const size_t alignment = IsComplex(dtype) ? SizeOf(dtype) / 2 : SizeOf(dtype);
    EXPECT_THAT(Make({3}, {}, dtype, memory + alignment), IsOk()) << Name(dtype);
    if (alignment == 1) continue;
    EXPECT_THAT(Make({3}, {}, dtype, memory + alignment / 2),
                Refused("is not aligned to " + std::to_string(alignment) + " bytes"))
        << Name(dtype);
  }
}

TEST(TensorViewTest, OverflowIsRefused) {
  EXPECT_THAT(Make({int64_t{1} << 32, int64_t{1} << 32}), Refused("the number of elements overflows"));
  EXPECT_THAT(Make({kHuge}), Refused("the size in bytes overflows")) << "elements fit, bytes do not";
  EXPECT_THAT(Make({2, 2}, {kHuge, 1}), Refused("the size in bytes overflows"));
  EXPECT_THAT(Make({3}, {kHuge}), Refused("the size in bytes overflows"));
  EXPECT_THAT(Make({0, kHuge, kHuge}), Refused("the number of elements overflows")) << "a zero does not hide it";
  void* const high = reinterpret_cast<void*>(~uintptr_t{0} - 15);
  EXPECT_THAT(Make({64}, {}, DType::kU8, high), Refused("overflows")) << "the end wraps around the address space";
  EXPECT_THAT(Make({1000}, {}, DType::kU8, high), AllOf(Refused("u8[1000]"), Refused("[1]")));
}

TEST(TensorViewTest, OverlapOfViewsComparesTheirByteExtents) {
  const auto view = [](int offset, const Numbers& shape, const Numbers& strides = {}) {
    return Make(shape, strides, DType::kF32, memory + offset).value();
  };
  const TensorView first = view(0, {4});
  EXPECT_TRUE(Overlap(first, first));
  EXPECT_TRUE(Overlap(first, view(12, {1})));
  EXPECT_TRUE(Overlap(view(12, {1}), first));
  EXPECT_FALSE(Overlap(first, view(16, {4})));
  EXPECT_FALSE(Overlap(view(16, {4}), first));
  EXPECT_TRUE(Overlap(view(0, {2}, {8}), view(4, {1}))) << "extents share a byte, elements need not";
  EXPECT_FALSE(Overlap(view(0, {2}, {8}), view(36, {1})));
  EXPECT_FALSE(Overlap(first, view(4, {0}))) << "no elements, no bytes";
  EXPECT_FALSE(Overlap(TensorView(), TensorView()));
}

TEST(TensorViewTest, SameLayoutComparesWhereElementsAre) {
  const TensorView row_major = Make({2, 1, 3}).value();
  EXPECT_TRUE(SameLayout(row_major, Make({2, 1, 3}, {3, 3, 1}, DType::kF64, memory + 64).value())) << "any dtype";
  EXPECT_TRUE(SameLayout(row_major, Make({2, 1, 3}, {3, 77, 1}).value())) << "an extent of 1 has no stride";
  EXPECT_FALSE(SameLayout(row_major, Make({2, 1, 3}, {1, 3, 2}).value()));
  EXPECT_FALSE(SameLayout(row_major, Make({2, 1, 3}, {4, 4, 1}).value()));
  EXPECT_FALSE(SameLayout(row_major, Make({2, 3}).value()));
  EXPECT_FALSE(SameLayout(row_major, Make({1, 2, 3}).value()));
  EXPECT_TRUE(SameLayout(Make({0, 3}).value(), Make({0, 3}, {7, 7}).value())) << "no elements, no places";
  EXPECT_FALSE(SameLayout(Make({0, 3}).value(), Make({3, 0}).value()));
}

TEST(DeviceIdTest, NamesAndEquality) {
  EXPECT_EQ(Name(DeviceId()), "host");
  EXPECT_EQ(Name(DeviceId{DeviceKind::kCuda, 3}), "cuda:3");
  EXPECT_STREQ(Name(DeviceKind::kCuda), "cuda");
  EXPECT_NE((DeviceId{DeviceKind::kCuda, 0}), (DeviceId{DeviceKind::kCuda, 1}));
  EXPECT_NE((DeviceId{DeviceKind::kCuda, 0}), DeviceId());
}

}  // namespace
}  // namespace lockstep
