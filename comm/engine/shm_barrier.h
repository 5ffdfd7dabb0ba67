// ShmBarrier: the barrier in shared memory that orders the ranks of a communicator.
//
// A rank that enters writes a slot of every other rank and waits for its own slot from each. What any rank did before it entered
// happens before what any rank does after it has read all slots. A slot brings a few bytes along.
//
//   segment = slot[2] for each writer      in the reader's segment of the arena: rank w writes slots 2w and 2w + 1 of every other rank
//   slot    = sequence:u64 envelope:32 bytes payload:24 bytes, one cache line, in the machine's byte order (little-endian)
//
// The sequence number counts the communicator's barriers from 1; barrier k uses slot k mod 2. The envelope is the signature
// of the collective whose ranks enter: the expected number with another envelope is a mismatch of calls.
//
// Two slots suffice. A writer overwrites its slot of barrier k when it enters k + 2. It has then read the slot of k + 1 from
// every rank, and a rank writes that only after it has read all slots of k. So nobody still reads the slot of k.
//
// A rank that fails takes its slots back (Withdraw) before its memory changes. A rank that has read all slots of a barrier checks that they
// are still there: one that it read first may be gone, and a peer that came later may have read memory that changed in between.
//
// Ordering. The sequence number is stored last, with release: whoever loads it, with acquire, sees the slot and all that its
// writer did before. In the other direction: a reader's slot of k + 1 is released after it read the slot of k, and acquired
// by the writer before it writes k + 2. Waking a sleeper takes more (transport/shm/doorbell.h). Ring has a sequentially consistent
// fence between the stores of the slots and the loads of the peers' bells. Arrived loads with sequential consistency, as the
// sleeper arms its bell. So either the sleeper sees the slot, or the writer sees the armed bell.

#ifndef COMM_ENGINE_SHM_BARRIER_H_
#define COMM_ENGINE_SHM_BARRIER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rank.h"
#include "transport/shm/shm_transport.h"
#include "transport/shm/symmetric_arena.h"
#include "transport/transport.h"

namespace lockstep {

using BarrierPayload = std::array<unsigned char, 24>;

struct alignas(64) BarrierSlot {
  std::atomic<uint64_t> sequence;
  Envelope envelope;
  BarrierPayload payload;
};
static_assert(sizeof(BarrierSlot) == 64, "one cache line");

// Externally synchronised, together with the transport.
class ShmBarrier {
 public:
  // The bytes of each segment of an arena, on small pages, for a barrier of `size` ranks.
  static constexpr size_t BytesPerRank(int size) { return 2 * sizeof(BarrierSlot) * static_cast<size_t>(size); }

  // `ranks`: the transport's rank of each rank of the communicator. `rank`: this one's, in the communicator. Borrows arena and
  // transport.
  // REQUIRES  the arena is ready; the first BytesPerRank(size) bytes of each segment are used for nothing else
  ShmBarrier(ShmTransport* transport, const SymmetricArena& arena, const std::vector<Rank>& ranks, Rank rank);

  ShmBarrier(const ShmBarrier&) = delete;
  ShmBarrier& operator=(const ShmBarrier&) = delete;

  int size() const { return static_cast<int>(peers_.size()); }
  Rank rank() const { return rank_; }

  // Begins the next barrier: writes the slots. Ring is a call of its own because its fence waits until the slots are written; until
  // then there is other work to do.
  // REQUIRES  every slot of the barrier before has been read. Ring follows before this thread does anything else.
  void Enter(const Envelope& envelope, const BarrierPayload& payload);

  // Wakes the peers that sleep, if slots were written since the last call.
  void Ring() {
    if (!rung_) RingPeers();
  }
  bool rung() const { return rung_; }

  // Takes the slots of the last `barriers` barriers back, at most two: a peer that has not read one yet does not pass that barrier.
  void Withdraw(int64_t barriers);

  // The peer's slot of the barrier that was entered last; null until the peer has written it.
  const BarrierSlot* Arrived(Rank peer) const {
    const BarrierSlot& slot = own_[2 * peer.value() + (sequence_ & 1)];
    return slot.sequence.load() == sequence_ ? &slot : nullptr;
  }

 private:
  struct Peer {
    BarrierSlot* slots = nullptr;  // the two slots that this rank writes, as mapped here
    Rank transport_rank;
  };

  void RingPeers();

  // Constant after construction.
  ShmTransport* const transport_;
  const Rank rank_;
  std::vector<Peer> peers_;  // by rank
  const BarrierSlot* own_ = nullptr;

  uint64_t sequence_ = 0;
  bool rung_ = true;  // since slots were written last
};

}  // namespace lockstep

#endif  // COMM_ENGINE_SHM_BARRIER_H_
