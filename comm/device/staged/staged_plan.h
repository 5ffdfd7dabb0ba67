// StagedPlan: a collective on a device's tensors, cut into collectives on the host of what fits a slot of staging
// memory.
//
// Pure. Piece i takes elements [i n, (i + 1) n) of the vector, or of every rank's block where there are blocks, so
// every piece is the same collective, with blocks that are cut alike. A piece's blocks lie one behind the other in the
// slot; what it reads and what it writes share the slot as they do in a collective in place, but for all-to-all, which
// has half of the slot for each.

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

// One piece. What holds it is used again for the next one, whose request borrows its counts.
struct StagedPiece {
  std::vector<StagedCopy> in;   // from the input to the slot
  std::vector<StagedCopy> out;  // from the slot to the output
  CollectiveRequest request;    // on the host; its buffers are in the slot
  std::vector<int64_t> counts;
  std::vector<int64_t> output_counts;
};

class StagedPlan {
 public:
  // The smallest slot that does for a world of this size.
  static size_t SlotBytesMin(int size);

  // The request has been checked. The plan keeps what it needs of it.
  StagedPlan(const CollectiveRequest& request, Rank rank, int size, size_t slot_bytes);

  const CollectiveRequest& request() const { return request_; }

  // At least 1. Equal on all ranks, but for an all-to-all with counts, of which each rank knows its own alone: there
  // the largest of all ranks' is to be used. Pieces beyond a rank's own are empty.
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
  // Of every block, the elements in piece `index`; their sum is returned.
  size_t CutBlocks(const std::vector<Block>& blocks, size_t index, std::vector<int64_t>* counts) const;
  // Copies between a buffer that has all the blocks, or this rank's alone, and the slot from `slot_offset` on.
  void AddCopies(const std::vector<Block>& blocks, bool own_block, size_t index, absl::Span<const int64_t> counts,
                 size_t slot_offset, std::vector<StagedCopy>* copies) const;

  CollectiveRequest request_;  // without counts
  int rank_;
  bool has_counts_;
  size_t slot_bytes_;
  std::vector<Block> input_blocks_;   // of the whole vector that is cut; one block where ranks have none
  std::vector<Block> output_blocks_;  // as the input's, but for all-to-all with counts
  size_t cut_ = 0;                    // elements of a block in a piece
  size_t pieces_ = 1;
  bool ranks_know_pieces_ = true;
};

}  // namespace lockstep

#endif  // COMM_DEVICE_STAGED_STAGED_PLAN_H_
