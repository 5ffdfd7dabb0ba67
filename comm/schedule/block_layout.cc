#include "comm/schedule/block_layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kCacheLineBytes = 64;

// At least 1: an element larger than a cache line is a unit of its own.
int64_t ElementsPerLine(int64_t element_bytes) { return std::max<int64_t>(1, kCacheLineBytes / element_bytes); }

absl::Status CheckVector(int64_t count, int64_t element_bytes, int64_t copies) {
  LOCKSTEP_CHECK(element_bytes > 0 && (element_bytes & (element_bytes - 1)) == 0) << element_bytes << " bytes";
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat("the count is negative: ", count));
  int64_t bytes = 0;
  // A line to spare, so that rounding up to whole lines does not overflow either.
  if (__builtin_mul_overflow(count, copies, &bytes) || __builtin_mul_overflow(bytes, element_bytes, &bytes) ||
      bytes > std::numeric_limits<int64_t>::max() - kCacheLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat(count, " elements of ", element_bytes, " bytes, ", copies,
                                                   " times, are more than can be addressed"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BlockLayout> BlockLayout::Split(int64_t count, int64_t element_bytes, int blocks) {
  LOCKSTEP_CHECK(blocks >= 1) << blocks << " blocks";
  if (absl::Status status = CheckVector(count, element_bytes, /*copies=*/1); !status.ok()) return status;
  const int64_t line = ElementsPerLine(element_bytes);
  BlockLayout layout;
  layout.blocks_ = blocks;
  layout.count_ = count;
  layout.unit_ = count / line >= blocks ? line : 1;
  const int64_t units = (count + layout.unit_ - 1) / layout.unit_;
  layout.units_each_ = units / blocks;
  layout.units_extra_ = units % blocks;
  return layout;
}

absl::StatusOr<BlockLayout> BlockLayout::Equal(int64_t count_per_block, int64_t element_bytes, int blocks) {
  LOCKSTEP_CHECK(blocks >= 1) << blocks << " blocks";
  if (absl::Status status = CheckVector(count_per_block, element_bytes, blocks); !status.ok()) return status;
  BlockLayout layout;
  layout.blocks_ = blocks;
  layout.count_ = count_per_block * blocks;
  layout.units_each_ = count_per_block;
  return layout;
}

absl::StatusOr<BlockLayout> BlockLayout::Explicit(absl::Span<const int64_t> counts, int64_t element_bytes) {
  auto offsets = std::make_shared<std::vector<int64_t>>();
  offsets->reserve(counts.size() + 1);
  int64_t end = 0;
  offsets->push_back(end);
  for (size_t block = 0; block < counts.size(); ++block) {
    if (counts[block] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("the count of block ", block, " is negative: ", counts[block]));
    }
    if (__builtin_add_overflow(end, counts[block], &end)) {
      return absl::InvalidArgumentError("the counts add up to more than can be addressed");
    }
    offsets->push_back(end);
  }
  if (absl::Status status = CheckVector(end, element_bytes, /*copies=*/1); !status.ok()) return status;
  BlockLayout layout;
  layout.blocks_ = static_cast<int>(counts.size());
  layout.count_ = end;
  layout.offsets_ = std::move(offsets);
  return layout;
}

int64_t BlockLayout::largest() const {
  if (blocks_ == 0) return 0;
  if (offsets_ == nullptr) return Size(0);
  int64_t largest = 0;
  for (int block = 0; block < blocks_; ++block) largest = std::max(largest, Size(block));
  return largest;
}

ChunkLayout::ChunkLayout(int64_t count, int64_t element_bytes, int64_t chunk_bytes) : count_(count) {
  LOCKSTEP_CHECK(count >= 0 && element_bytes > 0 && chunk_bytes > 0)
      << count << " elements of " << element_bytes << " bytes in chunks of " << chunk_bytes;
  const int64_t line = ElementsPerLine(element_bytes);
  chunk_size_ = std::max<int64_t>(1, chunk_bytes / element_bytes);
  if (chunk_size_ > line) chunk_size_ -= chunk_size_ % line;
  chunks_ = std::max<int64_t>(1, count / chunk_size_ + (count % chunk_size_ != 0 ? 1 : 0));
}

}  // namespace lockstep
