// LocalPeers: the ranks of this host that share memory with this one, and the connections over which they agreed on it.
//
// Every rank connects to every other rank that may be on its host. So a pair of ranks has two connections. Each begins with a handshake
// (transport/secure/channel.h), and carries what the rank that made it says: a hello with its doorbell, and later notices with memory.
//
//   a rank's own connection   waits for                     goes on to
//   trying                    room in the peer's queue      securing, or failed
//   securing                  the peer's proof              hello sent, or failed; trying, if the peer closes it
//   hello sent                the peer's answer             answered, or failed
//   answered                  the peer's own connection     -, or failed, if the peer takes its answer back
//   failed                    -
//
// A rank answers a peer's hello once its own connection to that peer has sent its hello or failed. It says yes only if its
// own hello is sent and the peer's fits. So two ranks share memory if both said yes; both know it, and neither waits for a
// connection that cannot come. A rank that cannot reach a peer tells the peer so, unless the peer cannot reach it either.
// Ranks cannot agree on time: if a deadline passes on one side only, the other side may believe otherwise, and the world must
// not form.
//
// Only processes of the same user that have the secret get as far as a hello, and only a process that has this rank's address knows its
// nonce.
// Later, the end of the peer's connection tells of its death, after everything that it said.

#ifndef TRANSPORT_SHM_LOCAL_PEERS_H_
#define TRANSPORT_SHM_LOCAL_PEERS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/half_open.h"
#include "transport/secure/refusals.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/handshake.h"

namespace lockstep {

// Externally synchronised, but for event_descriptor() and refusals().
class LocalPeers {
 public:
  // Called inside Poll. May call Notify and Leave.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnNotice(Rank rank, const ShmNotice& notice, UniqueFd memory) = 0;
    // Once, after its last notice: its process ended, it left, or it broke the protocol.
    virtual void OnLost(Rank rank, const absl::Status& why) = 0;
  };

  // Listens from now on. The expectation's nonce is drawn here. Borrows the bell.
  static absl::StatusOr<std::unique_ptr<LocalPeers>> Create(ShmExpectation self, const Credentials& credentials,
                                                            std::chrono::milliseconds handshake_timeout,
                                                            Doorbell* bell);

  // The address of this rank, for the others.
  std::string address() const { return address_.ToString(); }
  const Refusals& refusals() const { return refusals_; }

  // Finds out who shares memory. `addresses` by rank, empty for ranks not to try. Nobody is answered before this call; Poll
  // answers hellos that come later.
  // `go_on` is asked now and then; false ends the call as the deadline does.
  // REQUIRES  called once, by all ranks at about the same time
  // RETURNS   by rank, OK or why not: UNAVAILABLE if it cannot be reached, DEADLINE_EXCEEDED if it did not decide in time, or
  //           what does not fit
  std::vector<absl::Status> Connect(const std::vector<std::string>& addresses, Deadline deadline,
                                    const std::function<bool()>& go_on = nullptr);

  // As Connect answered, or how it was lost since.
  const absl::Status& status(Rank rank) const { return peers_[rank.value()].status; }
  // Of a local peer. Its address does not change.
  PeerDoorbell* bell(Rank rank) { return &peers_[rank.value()].bell; }
  pid_t pid(Rank rank) const { return peers_[rank.value()].pid; }

  // For the end of the set-up of a world whose ranks all share memory, before the first notice. Closes the listener, epoll and the
  // doorbells' descriptors. This rank's doorbell counts notices from now on, and Poll looks for the ends of connections every 50 ms. With
  // `parks`, the connections wait in the queue of one socket (LoopUnix) while they are not used.
  // REQUIRES  every rank calls it, once no rank connects any more
  void Settled(bool parks);

  // Queues a notice with memory (or none) for a local peer; never waits for it.
  void Notify(Rank rank, const ShmNotice& notice, UniqueFd memory);
  // Whether every notice was handed to the system.
  bool notices_sent() const { return unsent_peers_ == 0; }

  // Readable (level-triggered) while Poll has something to do, until Settled. Includes the bell's event.
  int event_descriptor() const { return events_.get(); }
  // Does what can be done without waiting. Returns whether it did anything.
  bool Poll(Observer* observer);

  // Closes all connections and the listener, for ever. LocalPeers see it.
  void Leave();

 private:
  enum class Own { kNone, kTrying, kSecuring, kHelloSent, kAnswered, kFailed };
  enum class Theirs { kNone, kHeard, kAnswered };
  struct Unsent {
    std::string bytes;
    UniqueFd memory;
  };
  struct Peer {
    absl::Status status = absl::UnavailableError("its memory is not shared: it was not asked");
    bool decided = false;
    ShmAddress address;
    Own own = Own::kNone;
    absl::Status own_status;  // of kFailed
    int tries = 0;
    UniqueFd own_socket;
    std::unique_ptr<Channel> own_channel;  // of kSecuring
    Theirs theirs = Theirs::kNone;
    absl::Status theirs_status;  // what stands against their hello
    UniqueFd their_socket;
    PeerDoorbell bell;
    pid_t pid = 0;
    std::deque<Unsent> unsent;
    bool parked = false;
  };

  // A connection of somebody who has not said a hello.
  struct HalfOpenPeer {
    UniqueFd socket;
    std::string source;  // "pid 4711"
    std::unique_ptr<Channel> channel;
  };

  LocalPeers(ShmExpectation self, const Credentials& credentials, std::chrono::milliseconds handshake_timeout,
             Doorbell* bell, UniqueFd listener, UniqueFd events, ShmAddress address);

  void Try(Peer* peer, Rank rank);
  // Goes on with the handshake of a connection of this rank's, and says hello behind it.
  void Secure(Peer* peer, Rank rank);
  void ReadAnswer(Peer* peer);
  void FailOwn(Peer* peer, const absl::Status& why);
  void AcceptSome();
  // With the spare descriptor, when there is no other.
  absl::StatusOr<UniqueFd> AcceptOneMore();
  void Admit(UniqueFd socket);
  // True when the connection is done with: it said hello, or is turned away.
  bool ReadHello(HalfOpenPeer* half_open);
  void TakeHello(HalfOpenPeer* half_open, UnixMessage message);
  // Closes a connection that has not said a hello.
  void Drop(uint64_t id, Refusal refusal, absl::string_view why);
  // Answers and decides as far as what is known goes.
  void Settle(Peer* peer);
  void Decide(Peer* peer, const absl::Status& status);
  // Both return whether something was done.
  bool ReadNotices(Peer* peer, Rank rank, Observer* observer);
  bool SendNotices(Peer* peer, Rank rank);
  void Lose(Peer* peer, Rank rank, const absl::Status& why, Observer* observer);
  void StopListening();
  // Poll's part after Settled.
  bool Look(Observer* observer);
  // Both do nothing for a peer that is lost. Park leaves the connections open where they cannot be parked.
  void Park(int rank);
  absl::Status Unpark(int rank);

  // Constant after construction.
  const ShmExpectation self_;
  const Credentials credentials_;
  const std::chrono::milliseconds handshake_timeout_;
  Doorbell* const bell_;
  const ShmAddress address_;

  UniqueFd listener_;
  UniqueFd events_;
  bool asked_ = false;   // Connect was called
  bool paused_ = false;  // the listener rests until the next Poll
  UniqueFd spare_;       // given up for a moment to turn somebody away for want of descriptors
  std::vector<Peer> peers_;
  Refusals refusals_;
  absl::flat_hash_map<uint64_t, HalfOpenPeer> half_open_peers_;
  HalfOpen half_open_;
  uint64_t last_id_ = 0;
  int unsent_peers_ = 0;
  bool settled_ = false;
  UniqueFd parking_;               // LoopUnix's, if connections are parked
  int room_ = 0;                   // descriptors that it counts in may_be_parked
  std::vector<int> parked_ranks_;  // in the order in which their connections are there
  uint32_t notices_seen_ = 0;
  absl::optional<HalfOpen::Clock::time_point> unread_since_;  // a notice, for want of descriptors
  HalfOpen::Clock::time_point next_look_ = {};
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_LOCAL_PEERS_H_
