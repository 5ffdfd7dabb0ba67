#include "reducer/pipeline/written_ranges.h"

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/device/device.h"
#include "base/types/dtype.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr uintptr_t kBase = uintptr_t{1} << 20;  // any address will do: nothing is read there

TensorView At(int64_t offset, int64_t bytes) {
  return TensorView::Create(reinterpret_cast<void*>(kBase + offset), DType::kF8E5M2, {bytes}, {}, DeviceId()).value();
}

TEST(WrittenRanges, OfTwoParametersDoNotOverlap) {
  const struct {
    int64_t offset, bytes;
    bool overlaps;
  } cases[] = {{100, 50, true}, {100, 1, true},  {149, 1, true},  {149, 9, true}, {90, 11, true},
               {90, 90, true},  {90, 10, false}, {150, 9, false}, {0, 1, false},  {110, 0, false}};
  for (const auto& c : cases) {
    WrittenRanges ranges(2);
    EXPECT_EQ(ranges.Add(0, At(100, 50)), absl::nullopt);
    EXPECT_EQ(ranges.Add(1, At(c.offset, c.bytes)), c.overlaps ? absl::optional<size_t>(0) : absl::nullopt)
        << c.offset << " + " << c.bytes;
    // Its own it may have again, elsewhere too.
    EXPECT_EQ(ranges.Add(0, At(100, 50)), absl::nullopt);
    EXPECT_EQ(ranges.Add(0, At(1120, 50)), absl::nullopt);
    EXPECT_EQ(ranges.Add(1, At(c.offset, c.bytes)), absl::nullopt);
  }
}

TEST(WrittenRanges, ThatAreForgottenMayBeAnothers) {
  WrittenRanges ranges(3);
  EXPECT_EQ(ranges.Add(0, At(0, 10)), absl::nullopt);
  EXPECT_EQ(ranges.Add(1, At(10, 10)), absl::nullopt);
  ranges.Forget();
  // As an allocator gives them out anew; one where it was, and one over both.
  EXPECT_EQ(ranges.Add(1, At(0, 10)), absl::nullopt);
  EXPECT_EQ(ranges.Add(0, At(10, 10)), absl::nullopt);
  EXPECT_EQ(ranges.Add(2, At(5, 10)), absl::optional<size_t>(1));
  ranges.Forget();
  EXPECT_EQ(ranges.Add(2, At(5, 10)), absl::nullopt);
  EXPECT_EQ(ranges.Add(0, At(10, 10)), absl::optional<size_t>(2));
  EXPECT_EQ(ranges.Add(1, At(0, 5)), absl::nullopt);
}

TEST(WrittenRanges, WithGapsMayLieBetweenEachOther) {
  // The columns of a row-major matrix.
  WrittenRanges ranges(3);
  const auto column = [](int64_t offset) {
    return TensorView::Create(reinterpret_cast<void*>(kBase + offset), DType::kF8E5M2, {10}, {4}, DeviceId()).value();
  };
  EXPECT_EQ(ranges.Add(0, column(0)), absl::nullopt);
  EXPECT_EQ(ranges.Add(1, column(1)), absl::nullopt);
  EXPECT_EQ(ranges.Add(2, column(1)), absl::optional<size_t>(1));
}

// Against a comparison of each with each.
TEST(WrittenRanges, AreFoundHoweverTheyMove) {
  constexpr size_t kParameters = 12;
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  WrittenRanges ranges(kParameters);
  std::vector<std::pair<int64_t, int64_t>> added(kParameters, {0, 0});
  for (int i = 0; i < 20000; ++i) {
    if (random() % 16 == 0) {
      ranges.Forget();
      added.assign(kParameters, {0, 0});
    }
    const size_t parameter = random() % kParameters;
    // Few places, so that many are where they were.
    const int64_t offset = static_cast<int64_t>(random() % 20) * 5, bytes = static_cast<int64_t>(random() % 3) * 5;
    bool free = true;
    for (size_t p = 0; p < kParameters; ++p) {
      const bool apart = offset + bytes <= added[p].first || added[p].first + added[p].second <= offset;
      free = free && (p == parameter || bytes == 0 || added[p].second == 0 || apart);
    }
    added[parameter] = free ? std::make_pair(offset, bytes) : std::make_pair(int64_t{0}, int64_t{0});
    ASSERT_EQ(ranges.Add(parameter, At(offset, bytes)) == absl::nullopt, free) << "call " << i;
  }
}

}  // namespace
}  // namespace lockstep
