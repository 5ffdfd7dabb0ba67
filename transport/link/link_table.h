// LinkTable: all links of one transport, which of them to try next, and how far.
//
// Completions run only inside Run(), and what they post waits in its list: however long a chain of "when this
// completed, post that" becomes, the stack does not grow, and no link is served beyond its share of a round.

#ifndef TRANSPORT_LINK_LINK_TABLE_H_
#define TRANSPORT_LINK_LINK_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "transport/link/link.h"
#include "transport/transport.h"

namespace lockstep {

// Externally synchronised, as the transport that owns it.
class LinkTable {
 public:
  // What one link may move per round, so that a busy one does not hold up the others. A round is one Run, or all that is
  // posted between two of them: who posts much gets to receive in between. Two ranks that fill the medium before they
  // receive keep it full from then on, and all that passes through it is out of the processor's caches by then.
  static constexpr int64_t kRoundBytes = int64_t{1} << 20;

  // Borrows the transport, which has a size and a rank by now.
  LinkTable(const Transport* transport, size_t staging_bytes);

  // Finds the link or makes it; it is broken from the start when its channel was aborted. Allocates when it makes one.
  Link* Get(Link::Direction direction, Rank peer, ChannelId channel);

  // Queues a send and moves what its stream takes at once, of this link alone, within its share of the round.
  void PostSend(Link* link, const Envelope& envelope, const void* data, size_t bytes, Operation* operation);

  // Queues a receive. It is left to Run, even when something may be there: who posts receives first and sends then should
  // not pay for a look into an empty stream in between. On a broken link it completes at once.
  void PostReceive(Link* link, const Envelope& expected, const Sink& sink, Operation* operation);

  // Transport::Exchange by the two links of a peer, where they have nothing else to do.
  Transport::Exchanged Exchange(Link* send, Link* receive, const Envelope& envelope, const void* data, const Sink& sink,
                                int polls);

  // To be tried by the next Run, or by the one that is under way.
  void Schedule(Link* link);
  // The same for every link that has operations and is ready. kReceives and kAll also try receives, or all links, that are
  // open and not known to be ready, for where trying costs less than asking.
  enum class Try { kReady, kReceives, kAll };
  void ScheduleActive(Try which);

  // Tries each scheduled link until it has nothing to do, is blocked, or has used up its share of the round. True when
  // anything moved. Called by a completion it does nothing: the call that is under way goes on with what was scheduled.
  bool Run();

  bool running() const { return running_; }
  // Whether another Run has work: receives that were posted, what completions of a send posted, links that had used up
  // their share.
  bool work_left() const { return !scheduled_.empty(); }
  // Links with operations; some that had may still be counted, until ScheduleActive.
  size_t active_count() const { return active_.size(); }
  // Whether a send waits for a connection, or for its stream to take more.
  bool sends_blocked() const;
  bool sends_pending() const;

  // Breaks the links of a channel, or all, now and in future. Their operations complete in the next Run.
  void BreakChannel(ChannelId channel, const absl::Status& status);
  void BreakAll(const absl::Status& status);
  // Destroys a broken link whose operations have completed. A later Get makes it anew.
  // REQUIRES  called between two Runs; nobody refers to the link any more
  void Release(Link* link);
  const PeerCounters& counters(Rank peer) const { return counters_[peer.value()]; }

 private:
  struct alignas(64) CacheLine {
    unsigned char bytes[64];
  };

  void Enqueue(Link* link, Operation* operation);
  // Advances one link within its share of the round.
  bool AdvanceInRound(Link* link, uint64_t round);

  const Transport* const transport_;
  std::vector<CacheLine> staging_;
  std::vector<PeerCounters> counters_;  // by peer; never resized, links point into it
  absl::flat_hash_map<uint64_t, std::unique_ptr<Link>> links_;
  absl::flat_hash_map<ChannelId, absl::Status> broken_channels_;
  absl::Status status_;  // OK, or what BreakAll was told first

  // Links that have, or lately had, operations.
  std::vector<Link*> active_;
  // Links to try, in order; during Run it grows at the end, and `exhausted_` collects those that come first next time.
  std::vector<Link*> scheduled_;
  std::vector<Link*> exhausted_;
  bool running_ = false;
  uint64_t round_ = 1;  // links begin in an earlier one
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_LINK_TABLE_H_
