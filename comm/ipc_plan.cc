#include "comm/ipc_plan.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/block_layout.h"
#include "comm/schedule.h"

namespace lockstep {
namespace {

class Planner {
 public:
  Planner(const CollectiveRequest& request, int rank, int size, const IpcSlots& slots)
      : request_(request),
        rank_(rank),
        size_(size),
        at_root_(request.root == Rank(rank)),
        element_bytes_(static_cast<int64_t>(SizeOf(request.dtype))),
        slots_(slots) {}

  absl::StatusOr<std::vector<IpcStep>> Plan(size_t pair_count_max) {
    switch (request_.collective) {
      case Collective::kBarrier:
        return std::vector<IpcStep>(1);
      case Collective::kAllReduce:
      case Collective::kBroadcast:
      case Collective::kReduce:
        return PlanVector();
      default:
        return PlanBlocks(pair_count_max);
    }
  }

  // Both shots of `count` elements from `offset` on.
  absl::StatusOr<IpcStep> TwoShots(int64_t offset, int64_t count) const {
    IpcStep step;
    step.two_shots = true;
    LOCKSTEP_ASSIGN_OR_RETURN(const BlockLayout parts, BlockLayout::Split(count, element_bytes_, size_));
    step.fold = Copy(rank_, parts.Offset(rank_), parts.Offset(rank_), parts.Size(rank_));
    for (int i = 1; i <= size_; ++i) {
      // Each begins with another, so that not all read from one.
      const int other = (rank_ + i) % size_;
      step.gets.push_back(Copy(other, parts.Offset(other), offset + parts.Offset(other), parts.Size(other)));
    }
    return step;
  }

 private:
  static IpcCopy Copy(int rank, int64_t slot_offset, int64_t offset, int64_t count) {
    return {rank, static_cast<size_t>(slot_offset), static_cast<size_t>(offset), static_cast<size_t>(count)};
  }

  // A vector of which a slot holds a piece.
  absl::StatusOr<std::vector<IpcStep>> PlanVector() const {
    const auto count = static_cast<int64_t>(request_.count);
    const ChunkLayout pieces(count, element_bytes_, static_cast<int64_t>(slots_.bytes));
    const bool one_shot = count * element_bytes_ <= static_cast<int64_t>(slots_.one_shot_bytes) && pieces.chunks() == 1;
    std::vector<IpcStep> steps;
    for (int64_t piece = 0; piece < pieces.chunks(); ++piece) {
      const int64_t offset = pieces.Offset(piece);
      const IpcCopy whole = Copy(rank_, 0, offset, pieces.Size(piece));
      IpcStep step;
      if (request_.collective == Collective::kBroadcast) {
        if (at_root_) step.puts.push_back(whole);
        step.gets.push_back(Copy(request_.root.value(), 0, offset, pieces.Size(piece)));
      } else {
        if (request_.collective == Collective::kReduce) {
          if (at_root_) step.fold = whole;
        } else if (one_shot) {
          step.fold = whole;
        } else {
          LOCKSTEP_ASSIGN_OR_RETURN(step, TwoShots(offset, pieces.Size(piece)));
        }
        step.puts.push_back(whole);
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  absl::StatusOr<BlockLayout> Layout(absl::Span<const int64_t> counts) const {
    if (!counts.empty()) return BlockLayout::Explicit(counts, element_bytes_);
    return BlockLayout::Equal(static_cast<int64_t>(request_.count) / size_, element_bytes_, size_);
  }

  // Blocks of ranks, of which a slot holds a piece of one, or of each.
  absl::StatusOr<std::vector<IpcStep>> PlanBlocks(size_t pair_count_max) const {
    const Collective collective = request_.collective;
    LOCKSTEP_ASSIGN_OR_RETURN(const BlockLayout input, Layout(request_.counts));
    BlockLayout output = input;
    if (!request_.output_counts.empty()) {
      LOCKSTEP_ASSIGN_OR_RETURN(output, Layout(request_.output_counts));
    }
    const bool one_each = collective == Collective::kAllGather || collective == Collective::kGather;
    const int64_t slot_bytes = static_cast<int64_t>(slots_.bytes) / (one_each ? 1 : size_);
    const int64_t largest = std::max(input.largest(), static_cast<int64_t>(pair_count_max));
    const ChunkLayout pieces(largest, element_bytes_, slot_bytes);
    // Where the piece for each rank begins in a slot that holds one for each.
    const int64_t room = pieces.Size(0);
    const auto piece_of = [&](const BlockLayout& layout, int block, int64_t piece) {
      const int64_t rest = layout.Size(block) - pieces.Offset(piece);
      return std::clamp<int64_t>(rest, 0, pieces.Size(piece));
    };
    std::vector<IpcStep> steps(pieces.chunks());
    for (int64_t piece = 0; piece < pieces.chunks(); ++piece) {
      IpcStep& step = steps[piece];
      const int64_t begin = pieces.Offset(piece);
      if (one_each) {
        step.puts.push_back(Copy(rank_, 0, begin, piece_of(input, rank_, piece)));
      } else if (collective != Collective::kScatter || at_root_) {
        for (int target = 0; target < size_; ++target) {
          step.puts.push_back(Copy(rank_, target * room, input.Offset(target) + begin, piece_of(input, target, piece)));
        }
      }
      if (collective == Collective::kReduceScatter) {
        step.fold = Copy(rank_, rank_ * room, begin, piece_of(input, rank_, piece));
      } else if (collective == Collective::kScatter) {
        step.gets.push_back(Copy(request_.root.value(), rank_ * room, begin, piece_of(input, rank_, piece)));
      } else if (collective != Collective::kGather || at_root_) {
        const int64_t slot_offset = one_each ? 0 : rank_ * room;
        for (int i = 1; i <= size_; ++i) {
          const int source = (rank_ + i) % size_;
          step.gets.push_back(
              Copy(source, slot_offset, output.Offset(source) + begin, piece_of(output, source, piece)));
        }
      }
    }
    return steps;
  }

  const CollectiveRequest& request_;
  const int rank_;
  const int size_;
  const bool at_root_;
  const int64_t element_bytes_;
  const IpcSlots slots_;
};

}  // namespace

absl::StatusOr<std::vector<IpcStep>> PlanIpc(const CollectiveRequest& request, int rank, int size,
                                             const IpcSlots& slots, size_t pair_count_max) {
  return Planner(request, rank, size, slots).Plan(pair_count_max);
}

absl::StatusOr<IpcStep> PlanIpcInPlace(const CollectiveRequest& request, int rank, int size) {
  LOCKSTEP_ASSIGN_OR_RETURN(IpcStep step,
                            Planner(request, rank, size, IpcSlots()).TwoShots(0, static_cast<int64_t>(request.count)));
  // What this rank folds is where it belongs.
  step.gets.pop_back();
  return step;
}

}  // namespace lockstep
