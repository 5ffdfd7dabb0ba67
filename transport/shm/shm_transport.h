// ShmTransport: messages between ranks of one host, through a mailbox in shared memory for each (source, target, channel).
//
// Ranks find out who shares memory by connecting (transport/shm/local_peers.h). Operations with any other rank fail, with the
// reason.
//
// Memory. The source makes a mailbox with its first message on a channel (532 KiB by default) and hands it to the target. So
// memory grows with the channels that a pair of ranks uses, in the direction in which it uses them: an all-reduce of 8 ranks
// as a ring takes 8 mailboxes, one in which all talk to all takes 56. No rank maps more than memory_bytes_max: beyond that, a
// channel's first message fails with RESOURCE_EXHAUSTED. A local peer costs three descriptors, after Settled two or none; a mailbox
// costs none once it is handed over. Aborting a channel releases its mailboxes. Memory is never reused, since a stopped peer may still
// write into it.
//
// Messages. A message passes through the mailbox in pieces, while the receiver reduces the pieces before them straight out of
// it. A message of up to 24 bytes is one cache line. System calls only ring the bell of a sleeping peer and check, once in a
// while, whether a connection closed.
//
// Waiting. A rank that polls reads memory. WaitForEvent first gives its core away and returns at once: with more ranks than
// cores, the peer runs then. After `yields_max` of these without any movement it sleeps (transport/shm/doorbell.h):
//   - It sleeps only while the bell is armed. Progress arms the bell under the caller's lock, before it checks all mailboxes
//     with a waiting operation, and disarms it when anything moved. So while the bell is armed, all operations were found
//     blocked since. An operation that is posted later is tried at once. A ring or a socket tells of whatever unblocks one.
//   - A thread that disarms the bell while another sleeps rings it.

#ifndef TRANSPORT_SHM_SHM_TRANSPORT_H_
#define TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <atomic>
#include <chrono>
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
#include "transport/posting.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/local_peers.h"
#include "transport/shm/mailbox.h"
#include "transport/transport.h"

namespace lockstep {

struct ShmTransportOptions : WorldIdentity {
  // Of each mailbox this rank makes.
  MailboxGeometry mailbox;
  // How much of a message is put at once: small enough to be in the private cache when the receiver reads it.
  size_t piece_bytes_max = size_t{16} << 10;
  // Of all mailboxes that this rank maps, its own and its peers'.
  size_t memory_bytes_max = size_t{1} << 30;
  // How often WaitForEvent gives the core away before it sleeps.
  int yields_max = 20;
  // What peers have to prove to each other: the world's secret. What they say afterwards is plain: the kernel keeps it between them.
  Credentials credentials;
  // How long a connection may take to shake hands, until this rank next looks.
  std::chrono::milliseconds handshake_timeout{5000};
};

// The messages of one channel from one rank to one other: in shm_transport.cc.
class ShmLink;
enum class ShmDirection : uint8_t { kSend, kReceive };

class ShmTransport final : public PollableTransport, private LocalPeers::Observer {
 public:
  // Listens from now on. INVALID_ARGUMENT for a rank outside the world, an over-long job id or an impossible geometry;
  // UNAVAILABLE or RESOURCE_EXHAUSTED where this process can make no shared memory.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Create(ShmTransportOptions options);
  ~ShmTransport() override;

  // The address of this rank, for the others.
  std::string address() const { return local_peers_->address(); }

  // Finds out which ranks share memory with this one. `addresses` by rank, empty for ranks that are known not to.
  // `go_on`, unless null, is asked now and then; false ends the call as the deadline does.
  // REQUIRES  called once, by all ranks at about the same time, before the first Send
  // RETURNS   by rank, OK or why not. Both ranks of a pair get the same answer, unless one of them has DEADLINE_EXCEEDED:
  //           then the world must not form
  std::vector<absl::Status> Connect(const std::vector<std::string>& addresses, Deadline deadline,
                                    const std::function<bool()>& go_on = nullptr);

  // Whom the listener turned away.
  const Refusals& refusals() const { return local_peers_->refusals(); }

  // Answers ranks that asked after Connect. For a rank that waits for something else before its first Progress.
  void AnswerLatecomers() { (void)local_peers_->Poll(this); }

  // For the end of the set-up of a world whose ranks all share memory: LocalPeers::Settled. There are no descriptors for poll() then.
  // REQUIRES  every rank calls it, before its first Send
  void Settled(bool parks) { local_peers_->Settled(parks); }

  // OK while a rank shares memory with this one; else why it does not, or how it was lost.
  const absl::Status& status(Rank peer) const { return local_peers_->status(peer); }

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

  // Ends a local peer's WaitForEvent if it sleeps. For users of other shared memory (transport/shm/symmetric_arena.h). Call it
  // after a sequentially consistent store; the peer checks for the store between Progress and WaitForEvent.
  void Nudge(Rank peer) { local_peers_->bell(peer)->RingIfArmed(); }
  // For the same users: a local peer's store was found, so nobody need sleep soon. Synchronised as Progress.
  void NoteMovement() {
    yields_.store(0, std::memory_order_relaxed);
    KeepAwake();
  }

 private:
  friend class SymmetricArena;

  // What a peer said of a symmetric arena, by the arena's number.
  struct PeerArena {
    bool offered = false;
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

  absl::Status CheckPeer(Rank peer) const { return lockstep::CheckPeer(name(), options_.rank, options_.size, peer); }
  // True in a forked child, which has none of the memory; breaks all links then.
  bool Forked();

  // Finds the link or makes it, broken from the start when its channel was aborted or its peer is no local peer.
  ShmLink* Get(ShmDirection direction, Rank peer, ChannelId channel);
  ShmLink* Make(ShmDirection direction, Rank peer, ChannelId channel);
  void OpenMailbox(ShmLink* link);
  absl::Status CheckMemory(size_t more_bytes) const;

  void Post(ShmLink* link, Operation* operation);
  // Tries all links with operations, one after the other, until none moves or all had their share. Returns whether anything
  // moved.
  bool Run();
  // After links were broken.
  void Settle();
  // Those of a broken channel; broken_channels_ remembers what becomes of later operations.
  void ReleaseLinks(ChannelId channel);
  // Work is left, or about to come: nobody may sleep.
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
  std::unique_ptr<LocalPeers> local_peers_;
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
  // anything moved. If one is lost, the next wait sets it again: the eventfd stays readable until Progress clears it, and a waiter that
  // finds the bell unarmed does not sleep.
  std::atomic<bool> event_seen_{false};
  std::atomic<bool> sleep_wanted_{false};
  std::atomic<int> yields_{0};
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SHM_TRANSPORT_H_
