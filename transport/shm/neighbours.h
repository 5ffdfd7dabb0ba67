// Neighbours: the ranks of this host that share memory with this one, and the connections over which they agreed on it.
//
// Every rank connects to every other that may be on its host, so between two ranks there are two connections, and each
// carries what its maker has to say: a hello with its doorbell, later notices with memory.
//
//   a rank's own connection   waits for                     goes on to
//   trying                    room in the peer's queue      greeted, or failed
//   greeted                   the peer's answer             answered, or failed
//   answered                  the peer's own connection     -, or failed, if the peer takes its answer back
//   failed                    -
//
// A rank answers the hello of a peer once its own connection to that peer is greeted or failed, and says yes only if it
// is greeted and the hello fits. So two ranks share memory if both said yes, both know it, and neither waits for a
// connection that cannot come: a rank that cannot reach a peer says so to the peer, unless the peer cannot reach it
// either. What cannot be agreed on is time: when a deadline passes on one side only, the other may believe otherwise, and
// the world should not be formed.
//
// Only processes of the same user get as far as a hello, and only those told of this rank's address know its nonce.
// Afterwards the peer's connection tells of its death: it ends, and everything that it said before was heard.

#ifndef TRANSPORT_SHM_NEIGHBOURS_H_
#define TRANSPORT_SHM_NEIGHBOURS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/greeting.h"
#include "transport/shm/unix_socket.h"

namespace lockstep {

// Externally synchronised, but for event_descriptor().
class Neighbours {
 public:
  // Told what neighbours say, inside Poll. May call Notify and Leave.
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnNotice(Rank rank, const ShmNotice& notice, UniqueFd memory) = 0;
    // Once, after its last notice: its process ended, it left, or it broke the protocol.
    virtual void OnLost(Rank rank, const absl::Status& why) = 0;
  };

  // Listens from now on. The expectation's nonce is drawn here. Borrows the bell.
  static absl::StatusOr<std::unique_ptr<Neighbours>> Create(ShmExpectation self, Doorbell* bell);

  // To be told to the others.
  const std::string& address() const { return address_; }

  // Finds out who shares memory. `addresses` by rank, empty for those that are not to be tried. Returns by rank OK, or
  // why not: UNAVAILABLE when it cannot be reached, DEADLINE_EXCEEDED when it did not decide in time, or what stood in the
  // way. To be called once, by all ranks at about the same time: until then nobody is answered. Whose hello comes later
  // is answered by Poll.
  std::vector<absl::Status> Connect(const std::vector<std::string>& addresses, Deadline deadline);

  // As Connect answered, or how it was lost since.
  const absl::Status& status(Rank rank) const { return peers_[rank.value()].status; }
  // Of a neighbour. Stays in place.
  PeerDoorbell* bell(Rank rank) { return &peers_[rank.value()].bell; }
  pid_t pid(Rank rank) const { return peers_[rank.value()].pid; }

  // Queues a notice with memory (or none) for a neighbour; never waits for it.
  void Notify(Rank rank, const ShmNotice& notice, UniqueFd memory);
  // Whether every notice was handed to the system.
  bool notices_sent() const { return unsent_peers_ == 0; }

  // Readable (level-triggered) while Poll has something to do. The bell's event is in it.
  int event_descriptor() const { return events_.get(); }
  // Does what can be done without waiting. True when something was.
  bool Poll(Observer* observer);

  // Closes all connections and the listener, for ever. Neighbours see it.
  void Leave();

 private:
  enum class Own { kNone, kTrying, kGreeted, kAnswered, kFailed };
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
    UniqueFd own_socket;
    Theirs theirs = Theirs::kNone;
    absl::Status theirs_status;  // what stands against their hello
    UniqueFd their_socket;
    PeerDoorbell bell;
    pid_t pid = 0;
    std::deque<Unsent> unsent;
  };

  Neighbours(ShmExpectation self, Doorbell* bell, UniqueFd listener, UniqueFd events, ShmAddress address);

  void Try(Peer* peer, Rank rank);
  void ReadAnswer(Peer* peer);
  void FailOwn(Peer* peer, const absl::Status& why);
  void AcceptAll();
  // With the spare descriptor, when there is no other.
  absl::StatusOr<UniqueFd> AcceptOneMore();
  // True when the connection is done with: it said hello, or is a stranger's.
  bool ReadHello(UniqueFd* socket);
  void TakeDoorbell(Peer* peer, UnixMessage* hello);
  // Answers and decides as far as what is known goes.
  void Settle(Peer* peer);
  void Decide(Peer* peer, const absl::Status& status);
  // Both return whether something was done.
  bool ReadNotices(Peer* peer, Rank rank, Observer* observer);
  bool SendNotices(Peer* peer, Rank rank);
  void Log(absl::string_view what);

  // Constant after construction.
  const ShmExpectation self_;
  Doorbell* const bell_;
  const std::string address_;

  UniqueFd listener_;
  UniqueFd events_;
  bool asked_ = false;  // Connect was called
  bool deaf_ = false;   // the listener rests until the next Poll
  UniqueFd spare_;      // given up for a moment to turn somebody away for want of descriptors
  std::vector<Peer> peers_;
  std::vector<UniqueFd> strangers_;  // connected, not heard of yet; oldest first
  int unsent_peers_ = 0;
  Deadline::Clock::time_point next_log_{};
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_NEIGHBOURS_H_
