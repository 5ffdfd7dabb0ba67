// The control channel: one connection from every rank to a hub in rank 0's process, beside the data.
//
// It brings the ranks of a world together (who is there, where their data listeners are, whether they agree on every
// option that shapes what goes over the wire), and from then on finds failures and says the same about them on every
// rank. Without it a ring blames a neighbour that is itself waiting.
//
//   state of a rank    how it is known                              announced to all as
//   dead               its control connection closed without a      ABORTED   "rank 2 (host b, pid 71) died: ..."
//                      goodbye
//   exited             its process said so as it exited           ABORTED   "rank 2 (host b, pid 71) exited: its process ended ..."
//   unresponsive       no heartbeat for peer_timeout (SIGSTOP, a     ABORTED   "rank 2 (host b, pid 71) is unresponsive: ..."
//                      frozen or unreachable host)
//   late               heartbeats arrive, but an operation's         DEADLINE_EXCEEDED, naming the operation and which
//                      deadline passed elsewhere                     ranks have not called or not finished it
//   left               said goodbye                                  nothing; only whoever still needs it is told
//   closed a channel   said so                                       nothing, until another rank goes on there: ABORTED
//                                                                    "rank 2 (host b, pid 71) has closed its communicator"
//
// The hub announces the first failure of a channel and no other, so that all ranks return the same error. Rank 0's own
// death is seen by each rank as the loss of its connection. A rank that was itself stopped and wakes up finds the
// announcement waiting.
//
// Threads. Thread-safe. Each rank has one control thread ("lockstep-ctl"), rank 0 one more for the hub
// ("lockstep-hub"). The handler runs on the control thread, outside our locks.

#ifndef TRANSPORT_CONTROL_CONTROL_H_
#define TRANSPORT_CONTROL_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/store/store.h"
#include "transport/transport.h"

namespace lockstep {

struct ControlOptions {
  Rank rank;
  int size = 1;
  std::string job_id;
  // Which attempt at this set-up it is for this rank: one that ranks that do the same count alike. A failure of an earlier attempt
  // than the reader's is not heeded, nor does it end a later one.
  int attempt = 0;
  // Whether this rank cannot go on, and creates its channel for LeaveBecause alone. Not for rank 0, which has Refuse.
  bool only_leaves = false;
  // Address that the hub binds (rank 0), port 0; what it listens on is published in the store.
  SocketAddress hub_bind_address;
  // Rank 0's, where it had nothing better than loopback: what it found. For ranks of other hosts, who cannot reach it.
  std::string why_loopback;
  // Rank 0's, asked now and then until all have joined: OK, or why they cannot, as where the store that it serves does not let
  // them in.
  std::function<absl::Status()> hindrance;
  // How long rank 0 stays at most, when the set-up has failed, for others to read why in the store: for a store that ends with
  // this set-up.
  std::chrono::milliseconds parting{0};
  // Rank 0's is used by all.
  std::chrono::milliseconds peer_timeout{30000};
  // Called at most once a channel, and at most once with kAllChannels.
  std::function<void(const Failure&)> on_failure;
  // Asked for on every heartbeat and when the hub wants to know who is late; must return at once.
  std::function<std::vector<std::pair<ChannelId, Progress>>()> progress;
  // What this rank called as collective `sequence` of a channel, in words that are equal on all ranks that called the same;
  // empty when it has not yet, or does not know any more. Where a rank has not got on for a heartbeat the hub asks all ranks,
  // and announces a difference as FAILED_PRECONDITION. Must return at once; may be null.
  std::function<std::string(ChannelId, uint64_t sequence)> called;
};

class ControlChannel {
 public:
  // Rank 0 starts the hub and publishes its address in the store; the others wait for that and connect. Keys are
  // removed again, so that a later world may use the same store and job id. Errors: DEADLINE_EXCEEDED ("rank 0 has not
  // appeared"), ALREADY_EXISTS when another process holds our rank (naming its host and pid), FAILED_PRECONDITION for a
  // hub of another version, job or world size, or on loopback of another host; whatever another rank could not set up, with its
  // code and name. The store is used until Join has returned, or the channel was left.
  //
  // What goes wrong here or in Join is told to all ranks: by the hub, and by the store to those that have not reached it.
  static absl::StatusOr<std::unique_ptr<ControlChannel>> Create(ControlOptions options, Store* store,
                                                                Deadline deadline);

  // Rank 0's, when it fails before it can create its channel: those that wait for it at the store are told why. Waits for them as
  // `parting` says.
  static void Refuse(const ControlOptions& options, Store* store, const absl::Status& why);

  virtual ~ControlChannel() = default;
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  // The local address by which this rank reaches the hub (the hub's own for rank 0), with port 0: a good one for the
  // data listener.
  virtual SocketAddress local_address() const = 0;

  // Tells the hub who we are and what must agree; returns everybody, by rank, once all have done so. Errors are the
  // same on all ranks that take part: DEADLINE_EXCEEDED, when the earliest deadline of any rank has passed, lists the
  // ranks still missing (a hub that does not answer has two seconds more); FAILED_PRECONDITION names each
  // option that differs, with the value of each rank ("chunk_bytes: 262144 on ranks 0-2, 65536 on rank 3").
  virtual absl::StatusOr<std::vector<Member>> Join(const Member& self, absl::Span<const AgreedOption> options,
                                                   Deadline deadline) = 0;

  // A number that is equal on all ranks of this world and no other: tells stale connections apart. Known from Create on.
  virtual uint64_t world_id() const = 0;

  // Reports that a channel failed here, with the reason; returns at once. Before the world has formed a report on all channels
  // fails the set-up of all ranks. The hub announces the first report of a
  // channel to all. When `suspect` is a rank (a data connection to it broke), the hub first looks whether that rank is
  // dead or has left, briefly (at most half a second), and says that instead. Once the hub has left, only this rank's own
  // handler is told.
  virtual void Report(ChannelId channel, const absl::Status& status, Rank suspect) = 0;
  virtual void Report(ChannelId channel, const absl::Status& status) = 0;

  // Reports that an operation's deadline passed. The hub asks all ranks how far they are and announces
  // DEADLINE_EXCEEDED with "operation" and which ranks have not started or not finished sequence number `sequence`.
  virtual void ReportLate(ChannelId channel, uint64_t sequence, const std::string& operation) = 0;

  // This rank has ended its use of a channel of `members` ranks in good order, after `started` collectives; returns at once. Once
  // another rank has called one more on it, the hub announces ABORTED, naming this rank: after a heartbeat or two. Where all
  // ranks end it after the same collectives, nothing is said.
  virtual void CloseChannel(ChannelId channel, int members, uint64_t started) = 0;

  // What was announced for the channel (or for all), waiting for it until the deadline; `fallback` if nothing was.
  virtual absl::Status AwaitFailure(ChannelId channel, const absl::Status& fallback, Deadline deadline) = 0;

  // Notes: small texts that ranks leave at the hub under a topic, for use when something in the data says that there
  // are some. The hub keeps the newest 64 topics; a note is at most 64 KiB. Posting returns at once.
  virtual void PostNote(ChannelId channel, uint64_t topic, const std::string& text) = 0;
  // All notes of the topic in rank order once there are `count`; DEADLINE_EXCEEDED otherwise.
  virtual absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitNotes(ChannelId channel, uint64_t topic,
                                                                               int count, Deadline deadline) = 0;

  // Enters monitored barrier number `sequence` of the channel, which `count` ranks are to enter, and returns those that had when it
  // was over: all, or fewer, in rank order, when the first who waited had no time left. All ranks get the same list, whoever comes
  // later included. The channel's failure otherwise; DEADLINE_EXCEEDED when the hub has not answered in time and two seconds more.
  virtual absl::StatusOr<std::vector<Rank>> EnterBarrier(ChannelId channel, uint64_t sequence, int count,
                                                         std::chrono::milliseconds timeout) = 0;

  // Says goodbye and closes. Waits for no peer. The destructor does it too. After it no callback runs; it may not be
  // called from one.
  virtual void Leave() = 0;

  // Leaves since this rank cannot go on with the set-up, which fails on all ranks with what it says.
  virtual void LeaveBecause(const absl::Status& why) = 0;

 protected:
  ControlChannel() = default;
};

}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_H_
