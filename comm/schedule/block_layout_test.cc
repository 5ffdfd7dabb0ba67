#include "comm/schedule/block_layout.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

const std::vector<int64_t>& Counts() {
  static const auto* const counts = new std::vector<int64_t>([] {
    std::vector<int64_t> counts;
    for (int64_t count = 0; count <= 300; ++count) counts.push_back(count);
    for (int64_t power = 512; power <= int64_t{1} << 40; power *= 4) {
      for (int64_t delta : {-17, -1, 0, 1, 15, 64}) counts.push_back(power + delta);
    }
    return counts;
  }());
  return *counts;
}

class BlockLayoutTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(BlockLayoutTest, SplitCoversTheVectorOnceInNearlyEqualBlocks) {
  const int64_t element_bytes = GetParam(), line = 64 / element_bytes;
  for (int64_t count : Counts()) {
    for (int blocks : {1, 2, 3, 4, 7, 8, 16, 31, 64}) {
      SCOPED_TRACE(testing::Message() << count << " elements, " << blocks << " blocks");
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const BlockLayout layout, BlockLayout::Split(count, element_bytes, blocks));
      ASSERT_EQ(layout.blocks(), blocks);
      ASSERT_EQ(layout.count(), count);
      ASSERT_EQ(layout.Offset(0), 0);
      ASSERT_EQ(layout.Offset(blocks), count);
      ASSERT_EQ(layout.Size(0, blocks), count);
      const bool is_aligned = count >= blocks * line;
      for (int block = 0; block < blocks; ++block) {
        ASSERT_LE(layout.Size(block), layout.Size(0));
        ASSERT_GE(layout.Size(block), 0);
        ASSERT_EQ(layout.Size(block), layout.Size(block, 1));
        if (block > 0) {
          ASSERT_LE(layout.Size(block), layout.Size(block - 1));
        }
        if (is_aligned) {
          ASSERT_EQ(layout.Offset(block) % line, 0);
        }
      }
      // The last block is the one that is cut: by less than a line more than the others may differ.
      ASSERT_LE(layout.Size(0) - layout.Size(blocks - 1), is_aligned ? 2 * line - 1 : 1);
      if (blocks > 1) {
        ASSERT_LE(layout.Size(0) - layout.Size(blocks - 2), is_aligned ? line : 1);
      }
    }
  }
}

TEST_P(BlockLayoutTest, EqualGivesEveryBlockTheSameSizeWhateverTheAlignment) {
  for (int64_t count : Counts()) {
    for (int blocks : {1, 2, 5, 64}) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const BlockLayout layout, BlockLayout::Equal(count, GetParam(), blocks));
      ASSERT_EQ(layout.count(), count * blocks);
      ASSERT_EQ(layout.Size(0), count);
      for (int block = 0; block < blocks; ++block) {
        ASSERT_EQ(layout.Offset(block), block * count);
        ASSERT_EQ(layout.Size(block), count);
      }
    }
  }
}

TEST_P(BlockLayoutTest, ChunksCoverTheOperandOnceAndKeepToTheirSize) {
  const int64_t element_bytes = GetParam();
  for (int64_t count : Counts()) {
    for (int64_t chunk_bytes : {1, 3, 16, 63, 64, 65, 100, 4096, 131072, 1000001}) {
      SCOPED_TRACE(testing::Message() << count << " elements in chunks of " << chunk_bytes);
      const ChunkLayout chunks(count, element_bytes, chunk_bytes);
      ASSERT_GE(chunks.chunks(), 1);
      // Vectors of many chunks: the first and the last few.
      const int64_t last = chunks.chunks() - 1;
      for (int64_t chunk = 0; chunk <= last; chunk = chunk < 4 || chunk + 1 >= last ? chunk + 1 : last - 1) {
        const bool is_empty_operand = count == 0;
        ASSERT_GE(chunks.Size(chunk), is_empty_operand ? 0 : 1);
        ASSERT_LE(chunks.Size(chunk) * element_bytes, std::max(chunk_bytes, element_bytes));
        if (chunk_bytes >= 64) {
          ASSERT_EQ(chunks.Offset(chunk) * element_bytes % 64, 0);
        }
        if (chunk < last) {
          ASSERT_EQ(chunks.Offset(chunk) + chunks.Size(chunk), chunks.Offset(chunk + 1));
        }
      }
      ASSERT_EQ(chunks.Offset(last) + chunks.Size(last), count);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ElementBytes, BlockLayoutTest, ::testing::Values(1, 2, 4, 8, 16));

TEST(BlockLayout, HasTheSizesWorkedOutByHand) {
  // 1000 floats are 63 lines, the last of 8: 16 + 16 + 16 + 15 lines.
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const BlockLayout layout, BlockLayout::Split(1000, 4, 4));
  EXPECT_EQ(layout.Size(0), 256);
  EXPECT_EQ(layout.Size(2), 256);
  EXPECT_EQ(layout.Offset(3), 768);
  EXPECT_EQ(layout.Size(3), 232);
}

TEST(BlockLayout, GivesLaterBlocksNothingWhenThereAreTooFewElements) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const BlockLayout layout, BlockLayout::Split(3, 4, 5));
  EXPECT_EQ(layout.Size(2), 1);
  EXPECT_EQ(layout.Size(3), 0);
  EXPECT_EQ(layout.Offset(4), 3);
  EXPECT_EQ(layout.Size(4), 0);
}

TEST(BlockLayout, OfABarrierIsEmpty) {
  const BlockLayout layout;
  EXPECT_EQ(layout.blocks(), 0);
  EXPECT_EQ(layout.count(), 0);
  EXPECT_EQ(layout.Size(0, 0), 0);
  EXPECT_EQ(layout.largest(), 0);
}

TEST(BlockLayout, RefusesWhatCannotBeAddressed) {
  EXPECT_THAT(BlockLayout::Split(-1, 4, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("negative: -1")));
  EXPECT_THAT(BlockLayout::Equal(-5, 4, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("negative: -5")));
  EXPECT_THAT(BlockLayout::Split(kMax / 4 + 1, 4, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than can be addressed")));
  EXPECT_THAT(BlockLayout::Split(kMax, 1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than can be addressed")));
  EXPECT_THAT(BlockLayout::Equal(kMax / 8, 1, 9),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("9 times, are more than can be addressed")));
  EXPECT_THAT(BlockLayout::Equal(kMax / 8, 4, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than can be addressed")));
}

TEST(BlockLayout, ExplicitBlocksLieOneBehindTheOther) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const BlockLayout layout, BlockLayout::Explicit({3, 0, 5, 1}, 4));
  EXPECT_EQ(layout.blocks(), 4);
  EXPECT_EQ(layout.count(), 9);
  EXPECT_EQ(layout.Offset(0), 0);
  EXPECT_EQ(layout.Offset(2), 3);
  EXPECT_EQ(layout.Offset(4), 9);
  EXPECT_EQ(layout.Size(1), 0);
  EXPECT_EQ(layout.Size(2), 5);
  EXPECT_EQ(layout.Size(0, 3), 8);
  EXPECT_EQ(layout.largest(), 5);
  const BlockLayout copy = layout;
  EXPECT_EQ(copy.Size(3), 1);
  EXPECT_THAT(BlockLayout::Explicit({1, -2}, 4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("count of block 1 is negative: -2")));
  EXPECT_THAT(BlockLayout::Explicit({kMax, 1}, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add up")));
  EXPECT_THAT(BlockLayout::Explicit({kMax / 4, 1}, 8),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than can be addressed")));
}

TEST(BlockLayout, StaysExactAtTheLargestVectors) {
  const int64_t count = (kMax - 64) / 4;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const BlockLayout layout, BlockLayout::Split(count, 4, 64));
  EXPECT_EQ(layout.Offset(64), count);
  int64_t sum = 0;
  for (int block = 0; block < 64; ++block) sum += layout.Size(block);
  EXPECT_EQ(sum, count);
  const ChunkLayout chunks(count, 4, 131072);
  EXPECT_EQ(chunks.Offset(chunks.chunks() - 1) + chunks.Size(chunks.chunks() - 1), count);
}

}  // namespace
}  // namespace lockstep
