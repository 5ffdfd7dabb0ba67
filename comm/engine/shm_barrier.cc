#include "comm/engine/shm_barrier.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep {

ShmBarrier::ShmBarrier(ShmTransport* transport, const SymmetricArena& arena, const std::vector<Rank>& ranks, Rank rank)
    : transport_(transport), rank_(rank) {
  LOCKSTEP_CHECK(arena.bytes_per_rank() >= BytesPerRank(static_cast<int>(ranks.size())))
      << arena.bytes_per_rank() << " bytes for " << ranks.size() << " ranks";
  for (const Rank member : ranks) {
    BarrierSlot* const slots = reinterpret_cast<BarrierSlot*>(arena.base(member));
    peers_.push_back({slots + 2 * rank.value(), member});
  }
  own_ = reinterpret_cast<const BarrierSlot*>(arena.base(ranks[rank.value()]));
}

void ShmBarrier::Enter(const Envelope& envelope, const BarrierPayload& payload) {
  ++sequence_;
  rung_ = false;
  for (int i = 0; i < size(); ++i) {
    if (i == rank_.value()) continue;
    BarrierSlot& slot = peers_[i].slots[sequence_ & 1];
    slot.envelope = envelope;
    slot.payload = payload;
    slot.sequence.store(sequence_, std::memory_order_release);
  }
}

void ShmBarrier::Withdraw(int64_t barriers) {
  for (int i = 0; i < size(); ++i) {
    for (int64_t k = 0; k < std::min<int64_t>(barriers, 2) && i != rank_.value(); ++k) {
      peers_[i].slots[(sequence_ - k) & 1].sequence.store(0);
    }
  }
  __sync_synchronize();  // before what this rank does next to its memory
}

void ShmBarrier::RingPeers() {
  rung_ = true;
  // std::atomic_thread_fence(std::memory_order_seq_cst), which GCC refuses to compile for ThreadSanitizer.
  __sync_synchronize();
  for (int i = 0; i < size(); ++i) {
    if (i != rank_.value()) transport_->Nudge(peers_[i].transport_rank);
  }
}

}  // namespace lockstep
