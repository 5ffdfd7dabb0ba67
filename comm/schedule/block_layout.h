// Where the blocks of a schedule lie in a vector of some number of elements, and how an operand is cut into chunks.
//
// Pure arithmetic in 64 bits, equal on every rank for equal arguments. Positions and sizes are in elements. The vector's
// size in bytes is checked when the layout is made, so nothing overflows later.

#ifndef COMM_SCHEDULE_BLOCK_LAYOUT_H_
#define COMM_SCHEDULE_BLOCK_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep {

class BlockLayout {
 public:
  // No blocks: the layout of a barrier.
  BlockLayout() = default;

  // For all-reduce, broadcast and reduce: `count` elements in `blocks` blocks that differ by at most 64 bytes and begin at
  // multiples of 64 bytes from the start, so that no cache line is written by two blocks. Earlier blocks are larger. With
  // less than 64 bytes a block, they differ by at most one element instead, and may be empty.
  // REQUIRES  element_bytes is a power of two
  // ERRORS    INVALID_ARGUMENT for a negative count, and for more bytes than can be addressed
  static absl::StatusOr<BlockLayout> Split(int64_t count, int64_t element_bytes, int blocks);

  // For all-gather, reduce-scatter, gather, scatter and all-to-all: `count_per_block` elements in each. Errors as above.
  static absl::StatusOr<BlockLayout> Equal(int64_t count_per_block, int64_t element_bytes, int blocks);

  // For their v-forms: counts[i] elements in block i, one block behind the other. INVALID_ARGUMENT names a negative count.
  static absl::StatusOr<BlockLayout> Explicit(absl::Span<const int64_t> counts, int64_t element_bytes);

  int blocks() const { return blocks_; }
  int64_t count() const { return count_; }
  // Block in [0, blocks]; Offset(blocks()) == count().
  int64_t Offset(int block) const {
    if (offsets_ != nullptr) return (*offsets_)[block];
    const int64_t offset = unit_ * (block * units_each_ + (block < units_extra_ ? block : units_extra_));
    return offset < count_ ? offset : count_;
  }
  int64_t Size(int block) const { return Offset(block + 1) - Offset(block); }
  // Of `blocks` blocks from `block` on, which are contiguous.
  int64_t Size(int block, int blocks) const { return Offset(block + blocks) - Offset(block); }
  // Of the largest block; 0 without blocks.
  int64_t largest() const;

 private:
  int blocks_ = 0;
  int64_t count_ = 0;
  // Every block has units_each_ units of unit_ elements, the first units_extra_ blocks one more; the last unit may be
  // cut.
  int64_t unit_ = 1;
  int64_t units_each_ = 0;
  int64_t units_extra_ = 0;
  // Of explicit blocks: where each begins, and where the last one ends. Shared by copies of the layout.
  std::shared_ptr<const std::vector<int64_t>> offsets_;
};

// The chunks of a contiguous operand: all of one size except the last. An operand without elements is one empty chunk: it is
// still a message, as in a barrier.
class ChunkLayout {
 public:
  // Chunks of at most chunk_bytes, rounded down to whole multiples of 64 bytes, or to whole elements where chunk_bytes
  // is less than that; never less than one element. chunk_bytes is at least 1.
  ChunkLayout(int64_t count, int64_t element_bytes, int64_t chunk_bytes);

  int64_t chunks() const { return chunks_; }
  int64_t Offset(int64_t chunk) const { return chunk * chunk_size_; }
  int64_t Size(int64_t chunk) const {
    const int64_t left = count_ - Offset(chunk);
    return left < chunk_size_ ? left : chunk_size_;
  }

 private:
  int64_t count_;
  int64_t chunk_size_;
  int64_t chunks_;
};

}  // namespace lockstep

#endif  // COMM_SCHEDULE_BLOCK_LAYOUT_H_
