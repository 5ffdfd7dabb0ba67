// ShmBarrier: the barrier in shared memory that orders the ranks of a communicator.
//
// A rank that enters writes a line to every other and waits for one from each. What any rank did before it entered happens
// before what any rank does after it has read all lines. A line brings a few bytes along.
//
//   part   = line[2] for each writer       in the part of the reader: rank w writes lines 2w and 2w + 1 of every other's part
//   line   = sequence:u64 envelope:32 bytes payload:24 bytes, one cache line; little-endian as the machine is
//
// The sequence number counts the communicator's barriers from 1; barrier k uses line k mod 2. The envelope is the signature
// of the collective whose ranks enter: the expected number with another envelope is a mismatch of calls.
//
// Two lines suffice. A writer overwrites its line of barrier k when it enters k + 2. It has then read the line of k + 1 from
// every rank, and a rank writes that only after it has read all lines of k. So nobody still reads the line of k.
//
// Ordering. The sequence number is stored last, with release: whoever loads it, with acquire, sees the line and all that its
// writer did before. In the other direction: a reader's line of k + 1 is released after it read the line of k, and acquired
// by the writer before it writes k + 2. Waking a sleeper takes more (transport/shm/doorbell.h): Ring has a sequentially
// consistent fence between the stores of the lines and the look at the peers' bells, and Arrived loads sequentially
// consistently, as the sleeper's arming of its bell is; so either it sees the line or its bell is seen armed.

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
  // Of an arena, on small pages, for a barrier of `size` ranks.
  static constexpr size_t BytesPerRank(int size) { return 2 * sizeof(BarrierSlot) * static_cast<size_t>(size); }

  // The arena is ready; of each part of it the first BytesPerRank(size) bytes are used for nothing else. Borrows it and the
  // transport. `ranks`: the transport's rank of each rank of the communicator. `rank`: this one's, in the communicator.
  ShmBarrier(ShmTransport* transport, const SymmetricArena& arena, const std::vector<Rank>& ranks, Rank rank);

  ShmBarrier(const ShmBarrier&) = delete;
  ShmBarrier& operator=(const ShmBarrier&) = delete;

  int size() const { return static_cast<int>(peers_.size()); }
  Rank rank() const { return rank_; }

  // Begins the next barrier: writes the lines. Every line of the one before has been read. Ring is to be called before this
  // thread turns to anything else: apart, because the fence in it waits until the lines are written, and until then
  // there is other work to do.
  void Enter(const Envelope& envelope, const BarrierPayload& payload);

  // Wakes the peers that sleep, if lines were written since the last call.
  void Ring() {
    if (!rung_) RingPeers();
  }
  bool rung() const { return rung_; }

  // The peer's line of the barrier that was entered last; null while it is not there.
  const BarrierSlot* Arrived(Rank peer) const {
    const BarrierSlot& line = own_[2 * peer.value() + (sequence_ & 1)];
    return line.sequence.load() == sequence_ ? &line : nullptr;
  }

 private:
  struct Peer {
    BarrierSlot* lines = nullptr;  // that this rank writes, as mapped here
    Rank transport_rank;
  };

  void RingPeers();

  // Constant after construction.
  ShmTransport* const transport_;
  const Rank rank_;
  std::vector<Peer> peers_;  // by rank
  const BarrierSlot* own_ = nullptr;

  uint64_t sequence_ = 0;
  bool rung_ = true;  // since lines were written last
};

}  // namespace lockstep

#endif  // COMM_ENGINE_SHM_BARRIER_H_
