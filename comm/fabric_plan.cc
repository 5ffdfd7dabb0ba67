#include "comm/fabric_plan.h"

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/status.h"
#include "comm/block_layout.h"
#include "comm/schedule.h"

namespace lockstep {
namespace {

// Of each rank's operand: what kernels read fastest.
constexpr size_t kOperandAlignment = 256;
// How much larger than the others a part may be (BlockLayout::Split).
constexpr size_t kPartSlackBytes = 64;

size_t Aligned(size_t bytes) { return (bytes + kOperandAlignment - 1) / kOperandAlignment * kOperandAlignment; }

class Planner {
 public:
  Planner(const CollectiveRequest& request, int rank, int size, FabricPlan* plan)
      : request_(request),
        rank_(rank),
        size_(size),
        root_(request.root.value()),
        element_bytes_(SizeOf(request.dtype)),
        plan_(plan) {}

  absl::Status Plan(char* slot, char* spare) {
    plan_->own_bytes = plan_->count = 0;
    plan_->sends.clear();
    plan_->receives.clear();
    plan_->operands.clear();
    plan_->second_sends.clear();
    plan_->second_receives.clear();
    const auto count = static_cast<int64_t>(request_.count);
    const auto element_bytes = static_cast<int64_t>(element_bytes_);
    switch (request_.collective) {
      case Collective::kBarrier:
        return absl::OkStatus();
      case Collective::kAllReduce:
      case Collective::kReduce: {
        LOCKSTEP_ASSIGN_OR_RETURN(const BlockLayout parts, BlockLayout::Split(count, element_bytes, size_));
        Fold(parts, slot, spare);
        Return(parts, slot);
        return absl::OkStatus();
      }
      case Collective::kBroadcast: {
        LOCKSTEP_ASSIGN_OR_RETURN(const BlockLayout parts, BlockLayout::Split(count, element_bytes, size_));
        Scatter(parts, slot, slot + Bytes(parts.Offset(rank_)));
        Spread(parts, slot);
        return absl::OkStatus();
      }
      default:
        return PlanBlocks(slot, spare);
    }
  }

 private:
  size_t Bytes(int64_t elements) const { return static_cast<size_t>(elements) * element_bytes_; }

  // Ranks know each other's blocks, but for an all-to-all with counts: there they say what they have, even if it is nothing.
  void Add(std::vector<FabricMessage>* messages, int peer, char* data, size_t bytes) const {
    if (bytes > 0 || !request_.output_counts.empty()) messages->push_back({peer, data, bytes});
  }

  // Calls it with every other rank, each rank beginning with another, so that not all send to one.
  template <typename F>
  void WithOthers(const F& each) const {
    for (int i = 1; i < size_; ++i) each((rank_ + i) % size_);
  }

  absl::StatusOr<BlockLayout> Layout(absl::Span<const int64_t> counts) const {
    const auto element_bytes = static_cast<int64_t>(element_bytes_);
    if (!counts.empty()) return BlockLayout::Explicit(counts, element_bytes);
    return BlockLayout::Equal(static_cast<int64_t>(request_.count) / size_, element_bytes, size_);
  }

  absl::Status PlanBlocks(char* slot, char* spare) {
    LOCKSTEP_ASSIGN_OR_RETURN(const BlockLayout blocks, Layout(request_.counts));
    char* const input = static_cast<char*>(const_cast<void*>(request_.input));
    char* const output = static_cast<char*>(request_.output);
    switch (request_.collective) {
      case Collective::kReduceScatter:
        Fold(blocks, slot, spare);
        break;
      case Collective::kAllGather:
        WithOthers([&](int peer) {
          Add(&plan_->sends, peer, input, Bytes(blocks.Size(rank_)));
          Add(&plan_->receives, peer, slot + Bytes(blocks.Offset(peer)), Bytes(blocks.Size(peer)));
        });
        break;
      case Collective::kGather:
        if (rank_ != root_) {
          Add(&plan_->sends, root_, input, Bytes(blocks.Size(rank_)));
        } else {
          WithOthers([&](int peer) {
            Add(&plan_->receives, peer, slot + Bytes(blocks.Offset(peer)), Bytes(blocks.Size(peer)));
          });
        }
        break;
      case Collective::kScatter:
        Scatter(blocks, slot, output);
        break;
      default: {
        LOCKSTEP_ASSIGN_OR_RETURN(const BlockLayout arriving,
                                  Layout(request_.output_counts.empty() ? request_.counts : request_.output_counts));
        WithOthers([&](int peer) {
          Add(&plan_->sends, peer, input + Bytes(blocks.Offset(peer)), Bytes(blocks.Size(peer)));
          Add(&plan_->receives, peer, output + Bytes(arriving.Offset(peer)), Bytes(arriving.Size(peer)));
        });
        plan_->own_source = input + Bytes(blocks.Offset(rank_));
        plan_->own_target = output + Bytes(arriving.Offset(rank_));
        plan_->own_bytes = Bytes(blocks.Size(rank_));
        break;
      }
    }
    return absl::OkStatus();
  }

  // Each rank's block of all slots to that rank, which folds them into its own.
  void Fold(const BlockLayout& blocks, char* slot, char* spare) {
    const size_t stride = Aligned(Bytes(blocks.Size(rank_)));
    plan_->target = slot + Bytes(blocks.Offset(rank_));
    plan_->count = static_cast<size_t>(blocks.Size(rank_));
    for (int r = 0; r < size_; ++r) {
      plan_->operands.push_back(r == rank_ ? plan_->target : spare + (r < rank_ ? r : r - 1) * stride);
    }
    WithOthers([&](int peer) {
      Add(&plan_->sends, peer, slot + Bytes(blocks.Offset(peer)), Bytes(blocks.Size(peer)));
      Add(&plan_->receives, peer, static_cast<char*>(const_cast<void*>(plan_->operands[peer])),
          Bytes(blocks.Size(rank_)));
    });
  }

  // Each rank's block of the root's slot to that rank, which puts it at `target`.
  void Scatter(const BlockLayout& blocks, char* slot, char* target) {
    if (rank_ != root_) return Add(&plan_->receives, root_, target, Bytes(blocks.Size(rank_)));
    WithOthers(
        [&](int peer) { Add(&plan_->sends, peer, slot + Bytes(blocks.Offset(peer)), Bytes(blocks.Size(peer))); });
  }

  // What was folded, to all or to the root.
  void Return(const BlockLayout& parts, char* slot) {
    const bool to_all = request_.collective == Collective::kAllReduce;
    WithOthers([&](int peer) {
      if (to_all || peer == root_) SendPart(parts, slot, peer);
      if (to_all || rank_ == root_) ReceivePart(parts, slot, peer);
    });
  }

  // Each rank's part to all but the root, which has them.
  void Spread(const BlockLayout& parts, char* slot) {
    WithOthers([&](int peer) {
      if (peer != root_) SendPart(parts, slot, peer);
      if (rank_ != root_) ReceivePart(parts, slot, peer);
    });
  }

  void SendPart(const BlockLayout& parts, char* slot, int peer) {
    Add(&plan_->second_sends, peer, slot + Bytes(parts.Offset(rank_)), Bytes(parts.Size(rank_)));
  }
  void ReceivePart(const BlockLayout& parts, char* slot, int peer) {
    Add(&plan_->second_receives, peer, slot + Bytes(parts.Offset(peer)), Bytes(parts.Size(peer)));
  }

  const CollectiveRequest& request_;
  const int rank_;
  const int size_;
  const int root_;
  const size_t element_bytes_;
  FabricPlan* const plan_;
};

}  // namespace

size_t FabricSpareBytes(size_t slot_bytes, int size) {
  return slot_bytes + size * (kPartSlackBytes + kOperandAlignment);
}

absl::Status MakeFabricPlan(const CollectiveRequest& request, int rank, int size, char* slot, char* spare,
                            FabricPlan* plan) {
  return Planner(request, rank, size, plan).Plan(slot, spare);
}

}  // namespace lockstep
