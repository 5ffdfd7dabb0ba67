// StagedPlan: a collective on a device's tensors, cut into collectives on the host that each fit a slot of staging memory.
//
// Pure. Piece i takes elements [i n, (i + 1) n) of the vector, or of every rank's block if there are blocks. So every piece
// is the same collective, with blocks cut in the same way. A piece's blocks lie one behind the other in the slot. Its input
// and output share the slot as in a collective in place; an all-to-all uses half of the slot for each.

#ifndef COMM_DEVICE_STAGED_STAGED_PLAN_H_
#define COMM_DEVICE_STAGED_STAGED_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/rank.h"
#include "comm/communicator.h"

namespace lockstep {

// In bytes.
struct StagedCopy {
  size_t device_offset = 0;  // in the request's input, or output
  size_t slot_offset = 0;
  size_t bytes = 0;  // never 0

  friend bool operator==(const StagedCopy& a, const StagedCopy& b) {
    return a.device_offset == b.device_offset && a.slot_offset == b.slot_offset && a.bytes == b.bytes;
  }
};

// One piece. The object is used again for the next piece. `request` borrows the counts.
struct StagedPiece {
  std::vector<StagedCopy> in;   // from the input to the slot
  std::vector<StagedCopy> out;  // from the slot to the output
  CollectiveRequest request;    // on the host; its buffers are in the slot
  std::vector<int64_t> counts;
  std::vector<int64_t> output_counts;
};

class StagedPlan {
 public:
  // The smallest slot that is large enough for a world of this size.
  static size_t SlotBytesMin(int size);

  // REQUIRES  the request has been checked. It is not needed afterwards.
  StagedPlan(const CollectiveRequest& request, Rank rank, int size, size_t slot_bytes);

  const CollectiveRequest& request() const { return request_; }

  // The number of pieces, at least 1. Equal on all ranks, except in an all-to-all with counts, where a rank knows only its own
  // (ranks_know_pieces() is false): the largest of all ranks must be used. Pieces beyond a rank's own number are empty.
  size_t pieces() const { return pieces_; }
  bool ranks_know_pieces() const { return ranks_know_pieces_; }

  void MakePiece(size_t index, char* slot, StagedPiece* piece) const;

 private:
  // Elements of a block, and before it.
  struct Block {
    size_t begin = 0;
    size_t count = 0;
  };

  static std::vector<Block> BlocksOf(absl::Span<const int64_t> counts, size_t count, int blocks);
  // Sets `counts` to the elements of each block in piece `index`. Returns their sum.
  size_t CutBlocks(const std::vector<Block>& blocks, size_t index, std::vector<int64_t>* counts) const;
  // Adds copies between a buffer with all blocks, or with this rank's alone, and the slot from `slot_offset` on.
  void AddCopies(const std::vector<Block>& blocks, bool own_block, size_t index, absl::Span<const int64_t> counts,
                 size_t slot_offset, std::vector<StagedCopy>* copies) const;

  CollectiveRequest request_;  // without counts
  int rank_;
  bool has_counts_;
  size_t slot_bytes_;
  std::vector<Block> input_blocks_;   // of the whole vector; one block if the collective has no blocks
  std::vector<Block> output_blocks_;  // differs from the input's only in an all-to-all with counts
  size_t cut_ = 0;                    // elements of a block in a piece
  size_t pieces_ = 1;
  bool ranks_know_pieces_ = true;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_STAGED_STAGED_PLAN_H_
