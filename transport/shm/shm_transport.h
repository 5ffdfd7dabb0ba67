// The shared-memory transport between ranks of one host: a mailbox for each (source, target, channel).
//
// Who shares memory with whom is found out by connecting (transport/shm/neighbours.h); operations with anybody else fail
// and say why. The source makes a mailbox with its first message on a channel and hands it to the target: 532 KiB by
// default. So memory grows with the channels that a pair of ranks really uses, in the direction in which it uses them:
// an all-reduce among 8 ranks as a ring takes 8 mailboxes, one in which everybody talks to everybody 56. No rank maps
// more than memory_bytes_max; beyond that a channel's first message fails with RESOURCE_EXHAUSTED. A neighbour costs three
// descriptors, a mailbox none once it is handed over. What a channel took is released when it is aborted; no memory is
// ever used for a second purpose, since a peer that was stopped may still write into it.
//
// A message passes through the mailbox in pieces, while the receiver folds the pieces before them straight out of it. A
// message of up to 24 bytes is one cache line. No system call is made but to ring a sleeping peer's bell and, once in a
// while, to look whether a connection closed.
//
// Waiting. Who polls, polls memory. WaitForEvent begins with returning at once, after giving its core away: with more
// ranks than cores that is when the peer runs. After `yields_max` of these without any movement it sleeps
// (transport/shm/doorbell.h):
//   - it sleeps only while the bell is armed, and Progress arms it, under the caller's lock, before it looks at all
//     mailboxes that something is awaited in; it disarms it when anything moved. So an armed bell means that all
//     operations were found blocked since, and an operation that is posted later is tried at once. Whatever unblocks one
//     of them is told by a ring, or by a socket.
//   - who disarms it while someone sleeps, rings it.

#ifndef TRANSPORT_SHM_SHM_TRANSPORT_H_
#define TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "transport/pollable_transport.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/neighbours.h"
#include "transport/shm/shared_memory.h"
#include "transport/shm/shm_link.h"
#include "transport/transport.h"

namespace lockstep {

struct ShmTransportOptions {
  Rank rank;
  int size = 1;
  std::string job_id;
  // A random number that the ranks of one world agree on, so that a process left from an earlier one is turned away.
  uint64_t world_id = 0;
  // Compared between ranks: the unit into which the layers above cut long messages.
  uint32_t chunk_bytes = uint32_t{1} << 20;
  // Of each mailbox this rank makes.
  MailboxGeometry mailbox;
  // How much of a message is put at once: small enough to be in the private cache when the receiver reads it.
  size_t piece_bytes_max = size_t{16} << 10;
  // Of all mailboxes that this rank maps, its own and its peers'.
  size_t memory_bytes_max = size_t{1} << 30;
  // How often WaitForEvent gives the core away before it sleeps.
  int yields_max = 20;
};

class ShmTransport final : public PollableTransport, private Neighbours::Observer {
 public:
  // Listens from now on. INVALID_ARGUMENT for a rank outside the world, an over-long job id or an impossible geometry;
  // UNAVAILABLE or RESOURCE_EXHAUSTED where this process can make no shared memory.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Create(ShmTransportOptions options);
  ~ShmTransport() override;

  // Where this rank is met, to be told to the others.
  const std::string& address() const { return neighbours_->address(); }

  // Finds out which ranks share memory with this one; `addresses` by rank, empty for those that are known not to. To be
  // called once, by all ranks at about the same time, before the first Send. By rank OK or why not; both ranks of a
  // pair come to the same answer unless one of them has DEADLINE_EXCEEDED: then the world should not be formed.
  std::vector<absl::Status> Connect(const std::vector<std::string>& addresses, Deadline deadline);

  // Answers whoever has asked only since Connect: for a rank that waits for something else before the first Progress.
  void AnswerLatecomers() { (void)neighbours_->Poll(this); }

  // OK while a rank shares memory with this one; else why it does not, or how it was lost.
  const absl::Status& status(Rank peer) const { return neighbours_->status(peer); }

  const char* name() const override { return "shm"; }
  Rank rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string DescribePeer(Rank peer) const override;
  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation) override;
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override;
  bool Progress() override;
  void WaitForEvent(Deadline deadline) override;
  void Wake() override { bell_.Ring(); }
  void AbortChannel(ChannelId channel, const absl::Status& status) override;
  void Abort(const absl::Status& status) override;
  // DEADLINE_EXCEEDED when sends were cut off.
  absl::Status Close(Deadline deadline) override;
  PeerCounters counters(Rank peer) const override { return peers_[peer.value()].counters; }

  void AppendDescriptors(std::vector<pollfd>* descriptors) const override;
  bool BeginWait() override;
  void EndWait(bool event) override;
  bool sends_pending() const override;

  // For who shares other memory with a neighbour (transport/shm/symmetric_arena.h): ends its WaitForEvent if it sleeps.
  // To be called after a sequentially consistent store; the peer looks for it between Progress and WaitForEvent.
  void Nudge(Rank peer) { neighbours_->bell(peer)->RingIfArmed(); }
  // For the same: something that a neighbour wrote was found, so nobody need sleep soon. Synchronised as Progress.
  void NoteMovement() {
    yields_.store(0, std::memory_order_relaxed);
    KeepAwake();
  }

 private:
  friend class SymmetricArena;

  // What a peer said of a symmetric arena, by the arena's number.
  struct PeerArena {
    bool offered = false;
    uint64_t bytes = 0;
    UniqueFd memory;
    bool mapped_known = false;
    bool mapped = false;
  };

  struct PeerState {
    PeerCounters counters;
    absl::flat_hash_map<uint32_t, PeerArena> arenas;
    std::set<ChannelId> closed;  // what it gave up before there was a link
    // By direction.
    absl::flat_hash_map<ChannelId, std::unique_ptr<ShmLink>> links[2];
    ShmLink* last_used[2] = {nullptr, nullptr};
  };

  ShmTransport(ShmTransportOptions options, Doorbell bell);

  absl::Status CheckPeer(Rank peer) const;
  // True in a forked child, which has none of the memory; breaks all links then.
  bool Forked();

  // Finds the link or makes it, broken from the start when its channel was aborted or its peer is no neighbour.
  ShmLink* Get(ShmLink::Direction direction, Rank peer, ChannelId channel);
  ShmLink* Make(ShmLink::Direction direction, Rank peer, ChannelId channel);
  void OpenMailbox(ShmLink* link);
  absl::Status CheckMemory(size_t more_bytes) const;

  void Post(ShmLink* link, Operation* operation);
  void Activate(ShmLink* link);
  // Tries all links with operations, in turns, until none moves or they had their share. True when anything moved.
  bool Run();
  // After links were broken.
  void Settle();
  // Those of a broken channel; broken_channels_ remembers what becomes of later operations.
  void ReleaseLinks(ChannelId channel);
  // Something is left to be done, or about to be: nobody may sleep.
  void KeepAwake();
  template <typename Visit>
  void ForEachLink(Visit visit);

  void OnNotice(Rank rank, const ShmNotice& notice, UniqueFd memory) override;
  void OnLost(Rank rank, const absl::Status& why) override;

  // Constant after construction.
  const ShmTransportOptions options_;
  const uint64_t fork_generation_;

  // Any thread arms, disarms and rings only as doorbell.h allows.
  Doorbell bell_;

  // Externally synchronised.
  std::unique_ptr<Neighbours> neighbours_;
  std::vector<PeerState> peers_;
  size_t links_count_ = 0;
  std::vector<ShmLink*> active_;  // links that have, or lately had, operations
  absl::flat_hash_map<ChannelId, absl::Status> broken_channels_;
  absl::Status status_;  // what Abort was told first
  int progress_without_poll_ = 0;
  bool running_ = false;  // completions may be on the stack
  bool untried_ = false;  // one of them posted something
  bool closed_ = false;

  // Shared with WaitForEvent on any thread. waiters_ and the bell's state are sequentially consistent: a waiter counts
  // itself, then looks at the bell; KeepAwake disarms it, then looks at waiters_. One of them sees the other.
  std::atomic<int> waiters_{0};
  // Hints between waiters and Progress, relaxed: a waiter saw an event; it wants to sleep; how often it yielded since
  // anything moved.
  std::atomic<bool> event_seen_{false};
  std::atomic<bool> sleep_wanted_{false};
  std::atomic<int> yields_{0};
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SHM_TRANSPORT_H_
